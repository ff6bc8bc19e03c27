"""Play one episode over HTTP: what any trainer in any language does with the server of episodes.

python http_episode.py URL [SPLIT] [INDEX]

Needs httpx alone; URL is what `mcpagent env serve --data DIR` prints. A model stands where `choose` is.
"""

import json
import sys

import httpx


def choose(messages: list[dict], tools: list[dict]) -> dict | str:
    """Return a call, or the text that answers: here a tool that needs no argument is tried once."""
    free = [tool["name"] for tool in tools if not tool["input_schema"].get("required")]
    return "Answer: none" if len(messages) > 2 or not free else {"name": free[0], "input": {}}


def ask(client: httpx.Client, path: str, body: dict | None = None) -> str:
    """Return the server's answer; stop with what it says if it refuses."""
    answer = client.post(path, json=body)
    return answer.text if answer.is_success else sys.exit(answer.json()["detail"])


def call(client: httpx.Client, name: str, arguments: dict) -> dict:
    """Return the output of one step; its parts come as server-sent events."""
    text = ask(client, "/call", {"name": name, "input": arguments})
    fields = [block.removeprefix("event: ").partition("\ndata: ") for block in text.split("\n\n")]
    result = json.loads("".join(data for kind, _, data in fields if kind in ("chunk", "end")))
    if not result["ok"]:
        raise RuntimeError(result["error"])
    return result["output"]


def main(url: str, split: str = "train", index: str = "0") -> None:
    """Print what each step says, and the reward in the end."""
    with httpx.Client(base_url=url, timeout=60) as client:
        opened = ask(client, "/create_session")
        client.headers["X-Session-ID"] = opened.partition("data: ")[2].partition("\n")[0]
        ask(client, "/create", {"split": split, "index": int(index)})
        blocks = {m["role"]: m["blocks"] for m in client.get("/messages").json()}
        messages = [{"role": role, "content": said[0]["text"]} for role, said in blocks.items()]
        listed = client.get("/task_tools").json()
        output: dict = {"finished": False}
        while not output["finished"]:
            chosen = choose(messages, listed["tools"])
            if isinstance(chosen, str):
                output = call(client, listed["terminal_tool"]["name"], {"text": chosen})
            else:
                output = call(client, chosen["name"], chosen["input"])
            messages += [{"role": "tool", "content": block["text"]} for block in output["blocks"]]
            print(chosen, [block["text"] for block in output["blocks"]])
        print("reward", output["reward"], output["metadata"]["terms"])
        ask(client, "/delete")


if __name__ == "__main__":
    main(*sys.argv[1:])
