"""A clinic on the SDK that does not say what its tools may do: every answer is JSON in a text, and patients
come in pages."""

from __future__ import annotations

import json
import random

from mcp.server import MCPServer

RANDOM = random.Random(99)
SPECIALTIES = ["cardiology", "dermatology", "neurology", "oncology", "pediatrics", "urology"]
REASONS = ["checkup", "follow-up", "vaccination", "blood test", "x-ray", "consultation"]
GIVEN = (
    *("Anna", "Ben", "Carla", "David", "Elena", "Farid", "Grace", "Hugo", "Irina", "Jonas"),
    *("Kira", "Liam", "Mona", "Nils", "Olga", "Petra", "Quinn", "Rosa", "Stefan", "Tessa"),
)
FAMILY = (
    *("Abbott", "Bauer", "Costa", "Dimitrov", "Evans", "Fischer", "Gruber", "Haddad"),
    *("Ito", "Jansen", "Keller", "Lopez", "Marsh", "Novak", "Okafor", "Park"),
)
NAMES = [(given, family) for given in GIVEN for family in FAMILY]


def _date(first: int, last: int) -> str:
    return f"{RANDOM.randint(first, last)}-{RANDOM.randint(1, 12):02}-{RANDOM.randint(1, 28):02}"


DOCTORS = {
    100 + 3 * number: {
        "id": 100 + 3 * number,
        "name": f"Dr. {given} {family}",
        "specialty": RANDOM.choice(SPECIALTIES),
        "room": f"{RANDOM.choice('ABC')}-{RANDOM.randint(1, 60)}",
        "phone": f"+49 30 {RANDOM.randint(100000, 999999)}",
        "years_of_practice": RANDOM.randint(2, 38),
    }
    for number, (given, family) in enumerate(RANDOM.sample(NAMES, 36))
}
PATIENTS = {
    f"PT{4000 + 7 * number}": {
        "patient_id": f"PT{4000 + 7 * number}",
        "full_name": f"{given} {family}",
        "date_of_birth": _date(1935, 2015),
        "insurance": RANDOM.choice(["public", "private", "none"]),
        "doctor_id": RANDOM.choice(list(DOCTORS)),
        "blood_type": RANDOM.choice(["A+", "A-", "B+", "0+", "0-", "AB+"]),
    }
    for number, (given, family) in enumerate(RANDOM.sample(NAMES, 60))
}
VISITS = {
    patient: [
        {
            "date": f"2026-{RANDOM.randint(1, 10):02}-{RANDOM.randint(1, 28):02}",
            "minutes": RANDOM.randint(10, 90),
            "reason": RANDOM.choice(REASONS),
        }
        for _ in range(RANDOM.randint(1, 4))
    ]
    for patient in PATIENTS
}

server = MCPServer("clinic", log_level="ERROR")


@server.tool()
def list_doctors(specialty: str | None = None) -> str:
    """List doctors, optionally only those of one specialty."""
    rows = [row for row in DOCTORS.values() if specialty in (None, row["specialty"])]
    return json.dumps([{"id": row["id"], "name": row["name"]} for row in rows])


@server.tool()
def get_doctor(doctor_id: int) -> str:
    """Get a doctor's record."""
    return json.dumps(DOCTORS[doctor_id])


@server.tool()
def list_patients(page: int = 1, per_page: int = 15) -> str:
    """List patients."""
    rows = list(PATIENTS.values())
    first = (page - 1) * per_page
    items = [
        {"patient_id": row["patient_id"], "full_name": row["full_name"]}
        for row in rows[first : first + per_page]
    ]
    return json.dumps({"page": page, "pages": -(-len(rows) // per_page), "items": items})


@server.tool()
def get_patient(patient_id: str) -> str:
    """Get a patient's record."""
    if patient_id not in PATIENTS:
        return json.dumps({"error": f"no patient {patient_id}"})
    return json.dumps(PATIENTS[patient_id])


@server.tool()
def get_visits(patient_id: str) -> str:
    """Get the visits of a patient."""
    return json.dumps(VISITS[patient_id])


if __name__ == "__main__":
    server.run()
