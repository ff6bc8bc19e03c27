"""What the tasks of BFCL and the servers that they run on agree on."""

from __future__ import annotations

# The class of a backend, which is also the name of its server, and the module and the tool list of it.
BACKENDS = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}
STATELESS = frozenset({"MathAPI"})  # takes no scenario


def load_tool(backend: str) -> str:
    """The tool by which an episode brings a backend into its initial state; never offered to a model."""
    return f"{backend}_load_scenario"


def state_tool(backend: str) -> str:
    """The tool by which an episode reads a backend's state; never offered to a model."""
    return f"{backend}_read_state"
