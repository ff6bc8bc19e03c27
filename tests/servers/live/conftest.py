from tests.servers.live.world import replay as replay
