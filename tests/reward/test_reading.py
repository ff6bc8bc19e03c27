"""Rates, ranges of times, sizes, conversions and things that are said of another one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from mcpagent.core.tasks import AnswerCheck
from mcpagent.reward.answer import answer_holds
from tests.reward.judging import holds, those_that_hold

FLATS = "flat 2: 790 EUR per month\nflat 3: 850 EUR per month"
SHOWS = """\
| Show | Episodes | Subscribers |
|---|---|---|
| Night Ferry | 24 | 9,150 |
| Bread & Bytes | 50 | 6,020 |"""
ROOMS = (
    '{"events": [{"title": "Review", "room": "Room Linden"}, {"title": "Training", "room": "Room Ahorn"}]}'
)
RUNS = "| Run | Result |\n|---|---|\n| 5508 | success |\n| 5509 | failure |"
ROTA = "Mon: Whitby\nTue: Whitby\nWed: Folarin\nThu: Ada"
CODES = (
    '[{"code": "3SKL0048127", "is": "out"}, {"code": "3SKL0048130", "is": "in"}, '
    '{"code": "3SKL0048139", "is": "in"}]'
)
PAPER = "- Munken 300 g/m\u00b2: 4100\n- Kraft 280 g/m\u00b2: 600\n- Chromolux 250 g/m\u00b2: 850"
ISSUERS = "host,issuer\nvpn.li.se,DigiCert TLS G2\napi.li.se,Let's Encrypt R10"
GUESTS = (
    "| guest | room | paid |\n|---|---|---|\n| Anneke de Vries | Gull | yes |\n| Jonas Weber | Heron | no |"
)
COUNTRIES = "Germany 31 %, United Kingdom 22 %, United States 17 %, Austria 9 %"
RECORDS = "name type value\nwww CNAME b.io.\napi A 203.0.113.57"
TYPES = {"type": "choice", "value": "CNAME", "options": ["A", "CNAME"]}
WHY = {"type": "choice", "value": "timeout", "options": ["timeout", "crash"]}
RUNNER = "# Ada Kurz\n|Field|Value|\n|--|--|\n|Bib|12|\n|Class|M Open|\n|Club|Lake Run|\n|Place|43|"
RUNNERS = "bib,runner,class,club\n12,Ada Kurz,M Open,Lake Run\n15,Bo Lind,W Open,Hill Run"
LESSONS = "time,subject,teacher\n08:50,Latin,Uwe Abel\n11:40,Art,Ida Blum\n12:30,Music,Kai Corte"
WINES = "code,name,drink,from\nW-1,Soave,2023 to 2029,1750578000\nW-2,Etna,2024 to 2031,1750664400"


@pytest.mark.parametrize("on_line", [True, False])
@pytest.mark.parametrize(
    ("check", "said", "shown", "right", "wrong"),
    [
        # a value is read in its unit its range and its other names
        (
            {"type": "number", "value": 5.2, "unit": "L/h"},
            "What is the flow of pump 3?",
            '{"pump": 3, "flow_l_h": 5.2}',
            ("5.2 L/h", "5.2 litres per hour", "5.2 liters an hour", "5200 ml/h"),
            ("5.2 ml/h", "5.2 L/min", "5.2 m3/h", "5.2 kg/h"),
        ),
        (
            {"type": "number", "value": 940, "unit": "Mbit/s"},
            "How fast is the link?",
            "eth0: 940",
            ("940 Mbit/s", "940 Mbps", "940 Mb/s", "940 megabits per second", "0.94 Gbit/s", "117.5 MB/s"),
            ("940 MB/s", "940 Gbit/s", "940 kbit/s"),
        ),
        (
            {"type": "number", "value": 1.03, "unit": "g/cm3"},
            "What is the density?",
            '{"density": 1.03}',
            ("1.03 g/cm³", "1.03 grams per cubic centimetre", "1030 kg/m3"),
            ("1.03 kg/m3", "1.03 mg/cm3"),
        ),
        (
            {"type": "number", "value": 6.4, "unit": "L/100 km"},
            "What does it use?",
            '{"use": 6.4}',
            ("6.4 l/100km", "6.4 litres per 100 kilometres"),
            ("6.4 L/km", "6.4 ml/100 km"),
        ),
        (
            {"type": "number", "value": 850, "unit": "EUR/month"},
            "What is the rent of flat 3?",
            FLATS,
            ("€850", "850 euros a month", "€850/month", "850"),
            ("€850 per week", "850 USD per month", "€790"),
        ),
        (
            {"type": "number", "value": 0.36, "unit": "EUR/km"},
            "What does a kilometre cost?",
            "price_eur_km: 0.36",
            ("36 cents per km", "€0.36/km"),
            ("36 euros per km", "36 cents per mile"),
        ),
        (
            {"type": "number", "value": 512, "unit": "MiB"},
            "What is the memory limit?",
            "limits: 512Mi",
            ("512Mi", "512 mebibytes", "0.5 GiB"),
            ("512Gi", "512 kibibytes"),
        ),
        (
            {"type": "set", "value": ["holiday-banner", "legacy-search"]},
            "Which flags were switched off?",
            "05-02 09:12 dark-mode off -> on\n05-06 11:30 holiday-banner on -> off\n"
            "05-08 08:57 legacy-search on -> off",
            ("holiday-banner and legacy-search",),
            (
                "dark-mode, holiday-banner, legacy-search",
                "The flags dark-mode, holiday-banner and legacy-search",
            ),
        ),
        (
            {"type": "pairs", "value": {"cart": 6, "checkout": 1}},
            "How many replicas are ready?",
            "cart: desired 6, ready 6\ncheckout: desired 4, ready 1",
            ("cart 6/6, checkout 1/4",),
            ("cart 6/6, checkout 4/1",),
        ),
        (
            {"type": "number", "value": 2.8, "unit": "EUR/person/night"},
            "How much is the city tax?",
            "City tax is EUR 2.80 per person and night.",
            ("€2.80", "2,80 € per person and night"),
            ("$2.80", "€28"),
        ),
        (
            {"type": "list", "value": ["415", "412"]},
            "List the merge requests, newest first.",
            '{"mrs": [{"iid": 412}, {"iid": 415}]}',
            ("!415, !412",),
            ("!412, !415", "not 415, 412"),
        ),
        (
            {"type": "name", "value": "DK77 0040 0440 5520 31"},
            "What is the IBAN?",
            "DK50 0040 0440 1162 43\nDK77 0040 0440 5520 31",
            ("DK7700400440552031", "DK77 0040 0440 5520 31"),
            ("DK5000400440116243", "DK770040044055203"),
        ),
        (
            {"type": "set", "value": ["bleed front brake", "replace bottom bracket"]},
            "Which tasks are open?",
            '["replace chain", "bleed front brake", "replace bottom bracket"]',
            ("bleeding the front brake and replacing the bottom bracket",),
            ("bleeding the front brake", "bleeding the front brake and replacing the chain"),
        ),
        (
            {"type": "pairs", "value": {"5 October": 17, "7 October": 12}},
            "What were the readings of 5 and 7 October?",
            '[{"date": "2025-10-05", "oechsle": 17}, {"date": "2025-10-07", "oechsle": 12}]',
            ("5 Oct: 17, 7 Oct: 12",),
            ("5 Oct: 12, 7 Oct: 17",),
        ),
        (
            {"type": "number", "value": 1744.4, "unit": "EUR"},
            "What is the net price?",
            "Words: 12460\nRate: EUR 0.14 per word\nNet: EUR 1744.40",
            ("€1,744.40",),
            ("€1,744.40 per word",),
        ),
        (
            {"type": "number", "value": 3.4, "unit": "per minute"},
            "What is the error rate?",
            "error_rate: 3.4 per minute",
            ("3.4 per minute", "3.4 errors per minute"),
            ("3.4 errors per second", "3.4 per hour"),
        ),
        (
            {"type": "pairs", "value": {"Port Valen": 2, "Ashby United": 3}},
            "How many goals did each side score?",
            '{"home": "Port Valen", "away": "Ashby United", "score": [2, 3]}',
            ("Port Valen 2–3 Ashby United", "Ashby United 3:2 Port Valen"),
            ("Port Valen 3–2 Ashby United", "Ashby United 2:3 Port Valen"),
        ),
        (
            {"type": "name", "value": "Coll"},
            "Where does sailing F103 go to?",
            "F103: Oban - Coll",
            ("from Oban to Coll", "to Coll"),
            ("from Coll to Oban", "to Oban"),
        ),
        (
            {"type": "name", "value": "Lalvin QA23"},
            "Which yeast was it?",
            "yeast: Lalvin QA23\nother: Lalvin D47",
            ("QA23 (Lalvin)",),
            ("D47 (Lalvin)", "Lalvin"),
        ),
        (
            {"type": "set", "value": ["08:30-09:45", "13:00-14:30"]},
            "Which slots are free?",
            "- 08:30-09:45\n- 13:00-14:30",
            ("8:30–9:45, 13:00–14:30", "8:30 to 9:45 AM and 1:00 to 2:30 PM"),
            ("8:30 and 13:00", "8:30–9:45, 13:00–14:00", "8:30–9:45, 1:00–2:30 AM"),
        ),
        (
            {"type": "name", "value": "08:30-09:45"},
            "Which slot is free?",
            "- 08:30-09:45",
            ("8:30–9:45", "from 8:30 to 9:45"),
            ("8:30", "9:45", "8:30–9:30"),
        ),
        (
            {"type": "number", "value": 2592, "unit": "s"},
            "How long did run 2291 take?",
            "duration 43m 12s",
            ("43 min 12 s", "43:12", "43m12s", "2,592 seconds"),
            ("43 h 12 min", "43 hours and 12 minutes"),
        ),
        (
            {"type": "pairs", "value": {"/home": "378G", "/boot": "690M"}},
            "How much is available on /home and /boot?",
            "/home 378G\n/boot 690M",
            ("/home: 378G, /boot: 690M", "/home 378 GB, /boot 690 MB"),
            ("/home 378 MB, /boot 690 GB", "/home 690 MB, /boot 378 GB"),
        ),
        (
            {"type": "pairs", "value": {"q_03ac": 1840.2, "q_b9e5": 63.5}},
            "What are the mean times of q_03ac and q_b9e5?",
            "queryid,calls,mean_ms\nq_03ac,96,1840.2\nq_b9e5,1207,63.5",
            ("q_03ac 1.8402 s, q_b9e5 63.5 ms",),
            ("q_03ac 1840.2 s, q_b9e5 63.5 s",),
        ),
        (
            {"type": "pairs", "value": {"5508": "success", "5509": "failure"}},
            "What were the results of runs 5508 and 5509?",
            RUNS,
            ("5508 succeeded, 5509 failed",),
            ("5508 failed, 5509 succeeded",),
        ),
        (
            {"type": "list", "value": ["Whitby", "Whitby", "Folarin", "Ada"]},
            "Who is on duty, day by day?",
            ROTA,
            ("Whitby, Whitby, Folarin, Ada", "Whitby, then Whitby, then Folarin, then Ada"),
            ("Whitby, Folarin, Ada, Whitby", "Whitby, Folarin, Whitby, Ada"),
        ),
        (
            {"type": "name", "value": "Room Ahorn"},
            "Where does the training take place?",
            ROOMS,
            ("Ahorn", "in Room Ahorn"),
            ("Linden", "in Room Linden", "Ahorn or Linden"),
        ),
        (
            {"type": "name", "value": "Apache-2.0"},
            "What licence does it have?",
            '{"license": "Apache-2.0"}',
            ("Apache-2.0", "Apache License 2.0"),
            ("Apache License 1.1", "MIT License 2.0"),
        ),
        (
            {"type": "choice", "value": "Mr. Lionel Pask", "options": ["Dr. Amara Nwosu", "Mr. Lionel Pask"]},
            "Whose duty ends first?",
            "Dr. Amara Nwosu: 3 May\nMr. Lionel Pask: 2 May",
            ("Mr. Pask", "Lionel's"),
            ("Dr. Nwosu", "Amara's", "Pask or Nwosu"),
        ),
        (
            {"type": "name", "value": "2–5"},
            "What are the players of game Kiln?",
            "| Game | Players |\n|---|---|\n| Kiln | 2–5 |\n| Umbra | 1–2 |",
            ("2–5", "2 to 5 players", "two to five", "between 2 and 5", "from two up to five"),
            ("1 to 2", "2 to 4", "2 to 15", "between 12 and 5"),
        ),
        (
            {"type": "date", "value": "2025-05-28"},
            "When was it issued?",
            "issued: 2025-05-28\ndue: 2024-05-28",
            ("the twenty-eighth of May twenty twenty-five", "28 May twenty twenty-five"),
            ("the twenty-eighth of May twenty twenty-four", "28 May nineteen twenty-five"),
        ),
        (
            {"type": "number", "value": 4},
            "What is the match count of depot YRK?",
            '{"matchCount": 4, "vans": [], "drivers": ["D-1", "D-2", "D-3", "D-4"]}',
            ("Four drivers for that one.", "4 drivers", "four in that one"),
            ("4 vans", "One driver for that one.", "14 drivers"),
        ),
        (
            {"type": "name", "value": "12 inch"},
            "What is the format of record R028?",
            '[{"id": "R028", "format": "12 inch"}, {"id": "R029", "format": "7 inch"}]',
            ("12 inch", "a twelve-inch"),
            ("7 inch", "a seven-inch", "a two-inch"),
        ),
        (
            {"type": "number", "value": 410, "unit": "kW"},
            "How powerful is the engine?",
            "power_kw: 410",
            ("410 kW", "410 kilowatts"),
            ("410 hp", "410 PS", "410 dB"),
        ),
        (
            {"type": "number", "value": -6.4, "unit": "µrad"},
            "How did the tilt change?",
            '{"tilt": -6.4}',
            ("−6.4 microradians", "-6.4 µrad"),
            ("-6.4 rad", "6.4 µrad"),
        ),
        # codes versions measures and initials are told apart
        (
            {"type": "set", "value": ["3SKL0048130", "3SKL0048139"]},
            "Which parcels are in?",
            CODES,
            ("3SKL0048130 and 3SKL0048139",),
            ("3SKL0048127, 3SKL0048130, 3SKL0048139",),
        ),
        (
            {"type": "pairs", "value": {"vpn.li.se": "DigiCert TLS G2", "api.li.se": "Let's Encrypt R10"}},
            "Which issuers have vpn.li.se and api.li.se?",
            ISSUERS,
            ("vpn.li.se: DigiCert TLS G2, api.li.se: Let's Encrypt R10",),
            ("vpn.li.se: Let's Encrypt R10, api.li.se: DigiCert TLS G2",),
        ),
        (
            {"type": "name", "value": "TLSv1.3"},
            "Which protocol?",
            '{"protocol": "TLSv1.3", "least": "TLSv1.2"}',
            ("TLS 1.3",),
            ("TLS 1.2",),
        ),
        (
            {"type": "set", "value": ["Kraft 280 g/m\u00b2", "Chromolux 250 g/m\u00b2"]},
            "Which papers are below 1000?",
            PAPER,
            ("Chromolux, Kraft",),
            ("Chromolux, Kraft, Munken",),
        ),
        (
            {"type": "name", "value": "Kraft 280 g"},
            "Which is the roll?",
            "item,unit\nBond 80 g,box\nKraft 280 g,roll",
            ("Kraft 280",),
            ("Kraft 280 kg",),
        ),
        (
            {"type": "list", "value": ["Germany", "United Kingdom", "United States"]},
            "Which three countries have most?",
            COUNTRIES,
            ("Germany, UK, US",),
            ("Germany, US, UK",),
        ),
        (
            {"type": "number", "value": 8000, "unit": "ms"},
            "After how many milliseconds did it time out?",
            "ID,TITLE\n1A2,no answer in 8000 ms\n1A3,no answer in 912 ms",
            ("After 8000 ms",),
            ("After 912 ms",),
        ),
        (
            {"type": "name", "value": "5:22 min/km"},
            "What is the pace of bib 12?",
            "bib,pace,best\n12,5:22 min/km,5:02 min/km",
            ("5:22 min/km",),
            ("5:02 min/km",),
        ),
        (TYPES, "What type is www?", RECORDS, ("www is a CNAME record",), ("www is an A record",)),
        (TYPES | {"value": "A"}, "What type is api?", RECORDS, ("an A record",), ("a CNAME record",)),
        (
            {"type": "set", "value": ["rear left tyre worn", "wiper blade torn"]},
            "Which defects are open?",
            '{"open": ["rear left tyre worn", "wiper blade torn"]}',
            ("worn rear left tyre, torn wiper blade",),
            ("worn rear left tyre, torn wiper blade, worn brake pads",),
        ),
        # scaled units other words and identifiers are told apart
        (
            {"type": "number", "value": 3.2, "unit": "million NOK"},
            "What is the budget in million NOK?",
            "Budget of 3.2 million NOK",
            ("3.2", "3.2 million NOK", "NOK 3,200,000", "3.2 million kroner"),
            ("3.2 NOK", "3.2 billion NOK", "32 million NOK", "3.2 million EUR"),
        ),
        (
            {"type": "number", "value": 24},
            "How many lines does it add?",
            "#878  24  3",
            ("two dozen", "twenty-four"),
            ("a dozen", "two", "three dozen"),
        ),
        (
            {"type": "number", "value": 75, "unit": "%"},
            "How far along is it in percent?",
            "Permits 75\nFlyers 40",
            ("three quarters", "75 percent"),
            ("a quarter", "half"),
        ),
        (
            {"type": "number", "value": 231},
            "How many insertions has it?",
            "3 files changed, 231 insertions(+), 47 deletions(-)",
            ("231 insertions", "231 lines"),
            ("231 deletions", "231 files"),
        ),
        (
            {"type": "number", "value": 594.34, "unit": "EUR"},
            "What is the payment?",
            "A 671.54\nB 594.34",
            ("594.34 euros (about 594)", "594.34 €, so roughly 594 €"),
            ("671.54 euros (about 672)", "594.34 or 671.54 euros"),
        ),
        (
            {"type": "date", "value": "00:03", "precision": "minute"},
            "When does the sun set?",
            '{"sunset": "00:03", "sunrise": "02:55"}',
            ("three minutes past midnight", "12:03 am"),
            ("three minutes to midnight", "three minutes past noon"),
        ),
        (
            {"type": "date", "value": "16:42:09"},
            "When was it changed?",
            "created 07:15:40\nmodified 16:42:09",
            ("4:42:09 in the afternoon",),
            ("4:42:09 in the morning",),
        ),
        (
            {"type": "name", "value": "SE"},
            "What is the wind direction?",
            '{"wind": "SE"}',
            ("south-east", "southeasterly", "South East"),
            ("south", "north-east", "south-south-east"),
        ),
        (
            {"type": "name", "value": "haze"},
            "What is the weather?",
            '{"condition": "haze"}',
            ("hazy", "Haze"),
            ("lazy", "hail"),
        ),
        (
            {"type": "name", "value": "x^2 - 1"},
            "What is e2 simplified?",
            "e2: x^2 - 1\ne3: x^2 - 2*x + 1",
            ("x^2 - 1", "x² − 1"),
            ("x^2 + 1", "x^2 / 1"),
        ),
        (
            {"type": "name", "value": "Old Corn Exchange, room 2"},
            "Where do we rehearse?",
            '{"Tuesday": "Old Chandlery, upper room", "Thursday": "Old Corn Exchange, room 2"}',
            ("room 2 of the Old Corn Exchange", "Old Corn Exchange, room 2"),
            ("room 3 of the Old Corn Exchange", "room 2 of the Old Chandlery"),
        ),
        (
            {"type": "name", "value": "Brompton of Mr Adeyemi"},
            "What is next?",
            "08:30 Silverlark\n09:45 Brompton of Mr Adeyemi",
            ("Mr Adeyemi's Brompton", "the Brompton of Mr Adeyemi"),
            ("Mr Adeyemi's Silverlark",),
        ),
        (
            {"type": "name", "value": "ruiz-yamile"},
            "Who pushed 0.44?",
            "0.45 thandiwe.m\n0.44 ruiz-yamile",
            ("user ruiz-yamile", "ruiz-yamile"),
            ("user thandiwe.m", "ruiz-yamile and thandiwe.m"),
        ),
        (
            {"type": "name", "value": "Ishani Rao"},
            "Who plays the Clerk?",
            "Orme: Gethin Prosser\nThe Clerk: Ishani Rao",
            ("Ishani Rao plays the Clerk",),
            ("Ishani Rao never plays the Clerk", "Gethin Prosser plays the Clerk"),
        ),
        (
            {"type": "number", "value": 12.75, "unit": "m"},
            "How many metres are left?",
            "bottle-green 12.75\nmoss-green 21.5",
            ("12 3/4 metres", "twelve and three-quarter metres"),
            ("12 1/4 metres", "3/4 metres"),
        ),
        (
            {"type": "number", "value": 262144, "unit": "bytes"},
            "What is the largest message?",
            "max_message_bytes: 262144",
            ("up to 262,144 bytes", "256 KiB"),
            ("more than 262,144 bytes", "262,144 KiB"),
        ),
        (
            {"type": "set", "value": ["pick.south", "returns.in"]},
            "Which queues have no consumers?",
            "pick.south 0\nreturns.in 0\nreturns.out 2",
            ("returns.in and pick.south",),
            ("returns.out and pick.south", "returns and pick.south"),
        ),
        (
            {"type": "number", "value": 3.6, "unit": "m"},
            "What is the water level limit?",
            "Do not go out above 3.60 m. Now: 2.48 m.",
            ("above 3.6 metres", "3.6 m"),
            ("above 2.48 m",),
        ),
        (
            {"type": "number", "value": 2360, "unit": "min"},
            "How many minutes are left in May?",
            "used 17640, left 2360",
            ("2,360 minutes for May",),
            ("it may be 2,360 minutes",),
        ),
        (
            {"type": "pairs", "value": {"Rao": "+15", "Lehtonen": "-9"}},
            "What rating change did they get?",
            "Rao +15\nLehtonen -9",
            ("Rao +15, Lehtonen -9",),
            ("Rao +15, Lehtonen +9", "Rao -15, Lehtonen -9"),
        ),
        (
            {"type": "set", "value": ["chipper", "wheelbarrow (red)"]},
            "Which tools are lent?",
            "chipper lent\nwheelbarrow (red) lent\nwheelbarrow (grey) in shed",
            ("the red wheelbarrow and the chipper",),
            ("the grey wheelbarrow and the chipper",),
        ),
        (
            {"type": "pairs", "value": {"telescope": "act 3", "lantern": "act 2"}},
            "Which prop belongs to which act?",
            "telescope  act 3\nlantern  act 2",
            ("telescope: third act; lantern: second act",),
            ("telescope: second act; lantern: third act",),
        ),
        (
            {"type": "pairs", "value": {"Classic": "13.4 % vol", "Qvevri": "14.1 % vol"}},
            "What alcohol do they have?",
            "Classic  13.4 % vol\nQvevri  14.1 % vol",
            ("Classic 13.4%, Qvevri 14.1%",),
            ("Classic 14.1%, Qvevri 13.4%", "Classic 13.4 g, Qvevri 14.1 g"),
        ),
        (
            {"type": "set", "value": ["amd64", "arm64"]},
            "For which architectures?",
            '{"of": ["linux/amd64", "linux/arm64"], "dropped": ["linux/ppc64le"]}',
            ("arm64 and amd64",),
            ("amd64, arm64, ppc64le", "amd64, arm64 and ppc64le"),
        ),
        (
            {"type": "set", "value": ["Sunday", "Monday"]},
            "On which days is it closed?",
            "Closed on Sundays and Mondays",
            ("Sundays and Mondays",),
            ("Saturdays, Sundays and Mondays", "Sundays, Mondays and Tuesdays"),
        ),
        (
            {"type": "name", "value": "Furnas County"},
            "Which county is under a heat advisory?",
            "1. Flood Watch - Norton County\n2. Heat Advisory - Furnas County",
            ("Furnas", "In Furnas."),
            ("Norton",),
        ),
        (
            {"type": "name", "value": "Senior Data Engineer"},
            "Which post is open?",
            '[{"post": "Senior Data Engineer", "open": true}, {"post": "Junior Editor", "open": false}]',
            ("Senior data engineer",),
            ("Data Engineer",),
        ),
        (
            {"type": "set", "value": ["Emre Yıldız", "Hanno Petersen"]},
            "Welche Passagiere haben abgesagt?",
            "Emre Yıldız: abgesagt\nHanno Petersen: abgesagt\nHanna Petersen: bestätigt",
            ["Hanno Petersen und Emre Yildiz"],
            ["Hanna Petersen und Emre Yildiz"],
        ),
        (
            {"type": "choice", "value": "north", "options": ["north", "south"]},
            "Is the camp north or south of the river?",
            "camp: on the northern bank",
            ["on the northern side"],
            ["on the southern side"],
        ),
        (
            {"type": "choice", "value": "MOB-866", "options": ["WEB-1201", "MOB-866"]},
            "Which was opened first, WEB-1201 or MOB-866?",
            "WEB-1201 opened: 2026-02-09\nMOB-866 opened: 2026-02-08",
            ["MOB-866 was opened first; WEB-1201 followed."],
            ["WEB-1201 was opened first; MOB-866 followed."],
        ),
        (
            {"type": "choice", "value": "weight-driven", "options": ["electric", "weight-driven"]},
            "Is the clock electric or weight-driven?",
            "drive: weight (2 x 85 kg)",
            ["It is driven by weights."],
            ["It is driven electrically, an electric clock."],
        ),
        (
            {"type": "name", "value": "B - light wear"},
            "What condition is the cloak in?",
            "grade: B - light wear\nbefore: A - as new",
            ["light wear"],
            ["as new"],
        ),
        (
            {"type": "set", "value": ["cock feather", "rapier (blunt)", "glove, left"]},
            "Which pieces are missing?",
            "[ ] cock feather\n[ ] rapier (blunt)\n[ ] glove, left\n[x] glove, right",
            ["cock feather, rapier and left glove"],
            ["cock feather, rapier and right glove"],
        ),
        (
            {"type": "list", "value": ["burner test", "quick-release attached", "valve cord checked"]},
            "What are the steps of the check, in order?",
            "1. burner test\n2. quick-release attached\n3. valve cord checked",
            ["Test the burner, attach the quick-release, check the valve cord."],
            ["Test the burner, check the valve cord, attach the quick-release."],
        ),
        (
            {"type": "set", "value": ["Fri 13 Mar", "Sat 14 Mar"]},
            "Which days are windy?",
            "Thu 12 Mar: calm\nFri 13 Mar: windy\nSat 14 Mar: windy",
            ["Friday and Saturday"],
            ["Thursday and Saturday"],
        ),
        (
            {"type": "pairs", "value": {"Sbrinz": 42, "Munster": 28.4}},
            "What is the price per kilo of Sbrinz and Munster?",
            '{"currency": "CHF", "per_kg": {"Sbrinz": 42.0, "Munster": 28.4}}',
            ["Sbrinz CHF 42.00, Munster CHF 28.40"],
            ["Sbrinz €42.00, Munster €28.40"],
        ),
        (
            {"type": "yes_no", "value": False},
            "Is the Tokyo exchange open at the moment?",
            "Tokyo: closed\nMumbai: open",
            ["It's shut."],
            ["It isn't shut."],
        ),
        (
            {"type": "name", "value": "Rasmus Thorsen"},
            "arbiter for the open section?",
            "Open: Rasmus Thorsen (FA)\nU1800: Inga Balode (FA)",
            ["FA Rasmus Thorsen"],
            ["FA Inga Balode"],
        ),
        (
            {"type": "choice", "value": "A (seq scan)", "options": ["A (seq scan)", "B (bitmap scan)"]},
            "Which query is faster, A (seq scan) or B (bitmap scan)?",
            "A (seq scan): 18.42 ms\nB (bitmap scan): 21.07 ms",
            ["A", "the seq scan"],
            ["B", "the bitmap scan"],
        ),
        (
            {"type": "choice", "value": "repaired", "options": ["repaired", "replaced"]},
            "Should the sign be repaired or replaced?",
            "Recommendation: repair.",
            ["repair", "Repair it."],
            ["replace", "Replace it."],
        ),
        (
            {"type": "choice", "value": "the firm's lorry", "options": ["van", "the firm's lorry"]},
            "Does the order go by van or by the firm's lorry?",
            "dispatch: lorry of the firm\nnote: van 2 in the workshop",
            ["The lorry takes it."],
            ["The van takes it."],
        ),
        (
            {"type": "name", "value": "A-"},
            "What grade has lot L-303?",
            "L-301: B+\nL-302: A\nL-303: A-",
            ["A-", "A minus"],
            ["A", "A plus", "B+"],
        ),
        (
            {"type": "name", "value": "Tourbes du Marais SPRL"},
            "Who supplied the soil?",
            "soil: Tourbes du Marais SPRL\ncompost: Compost de la Hesbaye SA",
            ["Tourbes du Marais"],
            ["Compost de la Hesbaye"],
        ),
        (
            {"type": "name", "value": "4050-263"},
            "What is the postal code of the address?",
            "formatted_address: R. das Flores 112, 4050-263 Porto, Portugal\nother: 4000-112 Braga",
            ["4050-263 Porto"],
            ["4000-112 Braga"],
        ),
        (
            {"type": "name", "value": "Tuber uncinatum"},
            "Which species was found?",
            "E-13: Tuber brumale\nE-14: Tuber uncinatum",
            ["T. uncinatum"],
            ["T. brumale"],
        ),
        (
            {"type": "list", "value": ["Degas the water", "Fill the basin", "Start the pump"]},
            "In what order are the steps carried out?",
            "1. Degas the water\n2. Fill the basin\n3. Start the pump",
            ["First you degas the water, then fill the basin and finally start the pump."],
            ["First you fill the basin, then degas the water and finally start the pump."],
        ),
        (
            {"type": "choice", "value": "Chez Yvonne", "options": ["Brasserie Lutz", "Chez Yvonne"]},
            "Which order weighs more, the one for Brasserie Lutz or the one for Chez Yvonne?",
            "Brasserie Lutz C-2208 41.5 kg\nChez Yvonne C-2211 44.0 kg",
            ["Chez Yvonne's order"],
            ["Brasserie Lutz's order"],
        ),
        # dates tables conversions and keys are read as they are written
        (  # a point in "p.m." makes no day of a month
            {"type": "date", "value": "2026-11-06T18:45:00"},
            "When does the ferry leave?",
            "departs: 2026-11-06T18:45:00",
            ("2026-11-06, 6:45 p.m.",),
            ("2026-06-11, 6:45 p.m.",),
        ),
        (  # a table with one line that is none
            {"type": "pairs", "value": {"Denmark": 38.2, "Norway": 9.4}},
            "What are the shares of Denmark and Norway?",
            "country        share\nDenmark        38.2 %\nNorway         9.4 %\nUnited Kingdom 6.1 %",
            ("Denmark 38.2 %, Norway 9.4 %",),
            ("Denmark 9.4 %, Norway 38.2 %",),
        ),
        (
            {"type": "number", "value": 95, "unit": "min"},
            "How long did the repair take?",
            '{"repair_min": 95, "lift": "L-2"}',
            ("95 minutes, or an hour and thirty-five minutes.",),
            ("95 minutes, or an hour and forty-five minutes.",),
        ),
        (
            {"type": "number", "value": 38.46, "unit": "kg"},
            "How heavy is it?",
            '{"weight_kg": 38.46}',
            ("38.46 kg, or 38,460 g if you'd rather have grams.",),
            ("38.46 kg, or 39,460 g if you'd rather have grams.",),
        ),
        (  # no year is said, and both have a time zone
            {"type": "date", "value": "2026-06-04T22:10:00Z"},
            "When did the gap begin?",
            "gap start: 2026-06-04 22:10 UTC",
            ("It began on 4 June at 22:10 UTC.",),
            ("It began on 4 June at 21:10 UTC.",),
        ),
        (  # thousands are apart in the result and in the answer
            {"type": "pairs", "value": {"Kesti": 1318, "Vrana": 876, "Oldmere": 2045}},
            "How many people live in Kesti, Vrana and Oldmere?",
            "| Village | People |\n|---|---|\n| Kesti | 1,318 |\n| Vrana | 876 |\n| Oldmere | 2,045 |",
            ("Kesti 1,318, Vrana 876 and Oldmere 2,045",),
            ("Kesti 1,318, Vrana 2,045 and Oldmere 876",),
        ),
        (  # 26 is no day of June
            {"type": "pairs", "value": {"2026-06-01": 26.88, "2026-06-02": 26.52}},
            "What were the prices on 1 and 2 June 2026?",
            "2026-06-01 26.88\n2026-06-02 26.52",
            ("1 June: 26.88, 2 June: 26.52",),
            ("1 June: 26.52, 2 June: 26.88",),
        ),
        (  # the question speaks of a merge method, no option does
            {"type": "choice", "value": "squash", "options": ["merge commit", "squash", "rebase"]},
            "Which merge method is the default: merge commit, squash or rebase?",
            "default: squash",
            ("The default merge method is squash.",),
            ("The default merge method is a merge commit.",),
        ),
        (
            {"type": "number", "value": 0.94, "unit": "arcsec"},
            "What was the seeing?",
            '{"seeing_arcsec": 0.94}',
            ("0.94 arcseconds",),
            ("0.94 arcminutes",),
        ),
        (  # keys of letters of both cases are told apart by them
            {"type": "name", "value": "tX9bQ2"},
            "What is the key of the share?",
            '{"key": "tX9bQ2"}',
            ("tX9bQ2",),
            ("tX9BQ2",),
        ),
    ],
)
def test_a_value_is_read_on_the_line_and_in_a_free_text(
    check: dict[str, Any], said: str, shown: str, right: Sequence[str], wrong: Sequence[str], on_line: bool
) -> None:
    told = those_that_hold(check, (*right, *wrong), said=said, shown=shown, on_line=on_line)
    assert told == [*right]


@pytest.mark.parametrize(
    ("check", "said", "shown", "right", "wrong"),
    [
        # what is said of others beside a value is no rival in a free text
        (
            {"type": "number", "value": 6020},
            "How many subscribers does Bread & Bytes have?",
            SHOWS,
            "It has 6,020 subscribers, which puts it in second place behind Night Ferry with 9,150.",
            "It has 9,150 subscribers, which puts it ahead of Night Ferry with 6,020.",
        ),
        (
            {"type": "number", "value": 77.9, "unit": "kg"},
            "How much honey was there in 2025?",
            "2024: 61.3 kg\n2025: 77.9 kg",
            "The harvest of 2025 added up to 77.9 kg, compared with 61.3 kg in 2024.",
            "The harvest of 2025 added up to 61.3 kg, compared with 77.9 kg in 2024.",
        ),
        (
            {"type": "number", "value": 149, "unit": "EUR"},
            "What does the course cost?",
            "Lead Climbing: 149 EUR, 4 sessions",
            "It costs €149 for four sessions, which comes to €37.25 per session.",
            "It costs €596, that is four times €149.",
        ),
        (
            {"type": "number", "value": 1610612736, "unit": "bytes"},
            "How large is it?",
            "size: 1610612736",
            "It has 1610612736 bytes, or roughly 1.6 GB.",
            "It has 1610612736 bytes, or roughly 1.6 TB.",
        ),
        (
            {"type": "number", "value": 150, "unit": "min"},
            "How long is the exam?",
            "Maths 08:30 150 min",
            "Two and a half hours (150 min), so it finishes at 11:00.",
            "It starts at 08:30 and finishes at 11:30.",
        ),
        (
            {"type": "number", "value": 8.69, "unit": "kWh"},
            "How much did I use?",
            "day_kwh,night_kwh,total_kwh\n5.92,2.77,8.69",
            "You used 8.69 kWh, 5.92 kWh of it during the day and 2.77 kWh at night.",
            "You used 8.69 kWh, 5.92 kWh and 2.87 kWh.",
        ),
        (
            {"type": "choice", "value": "Bread & Bytes", "options": ["Bread & Bytes", "Night Ferry"]},
            "Which show has more episodes?",
            SHOWS,
            "Bread & Bytes has more episodes (50), followed by Night Ferry at 24.",
            "Night Ferry has more episodes (50), followed by Bread & Bytes at 24.",
        ),
        (
            {"type": "choice", "value": "Aisha", "options": ["Tom", "Aisha"]},
            "Who has the longer break?",
            "Aisha: 45 min\nTom: 40 min",
            "Aisha has the longer break (45 minutes vs. 40 minutes for Tom).",
            "Aisha vs. Tom",
        ),
        (
            {"type": "set", "value": ["8c", "10a"]},
            "Which classes are affected?",
            "8c: Biology\n10a: History",
            "Classes 8c and 10a are affected.",
            "Classes 8c, 10a and 7d are affected.",
        ),
        (
            {"type": "set", "value": ["Salvia 'Caradonna'", "Geranium 'Rozanne'"]},
            "Which are on bench B3?",
            "Salvia 'Caradonna': B3\nGeranium 'Rozanne': B3\nNepeta 'Giant': B4",
            "Bench B3 holds Salvia 'Caradonna' and Geranium 'Rozanne'.",
            "Salvia 'Caradonna', Geranium 'Rozanne' and Nepeta 'Giant' are on bench B3.",
        ),
        # reasons denials and remarks speak for or against a free text
        (
            {"type": "name", "value": "Anneke de Vries"},
            "Who has the Gull?",
            GUESTS,
            "Mrs. de Vries has it.",
            "Anna de Vries has it.",
        ),
        (
            {"type": "name", "value": "Jonas Weber"},
            "Which guest hasn't paid?",
            GUESTS,
            "Jonas Weber has not paid.",
            "Anneke de Vries has not paid, but Jonas Weber has.",
        ),
        (
            {"type": "name", "value": "mailer"},
            "Which user missed heartbeats?",
            "08:30 closed: user 'mailer' missed heartbeats\n08:31 user 'guest' joined",
            "The user 'mailer' missed heartbeats.",
            "The user 'guest' missed heartbeats.",
        ),
        (
            {"type": "date", "value": "2026-12-09", "precision": "day"},
            "Until when may we show it?",
            '{"until": "2026-12-09", "released": "2026-10-22"}',
            "You may show it until 9 December 2026.",
            "It may be 9 December 2026.",
        ),
        (
            {"type": "choice", "value": "cancelled", "options": ["confirmed", "cancelled"]},
            "Is it confirmed or cancelled?",
            '{"status": "cancelled"}',
            "It's **canceled**.",
            "It's confirmed.",
        ),
        (
            WHY,
            "Why did it fail: timeout or crash?",
            "ERROR (timeout after 30s)",
            "It failed because of a timeout.",
            "It failed because of a crash, not a timeout.",
        ),
        (
            {"type": "number", "value": 310, "unit": "NOK"},
            "What does a car cost?",
            '{"car_nok": 310, "van_nok": 465}',
            "310 Norwegian kroner (279 if you book online)",
            "310 or 465 Norwegian kroner",
        ),
        (
            {"type": "abstention", "value": "cannot"},
            "What causes the crashes of api-1?",
            "NAME STATUS\napi-1 CrashLoopBackOff",
            "The list only shows its status, not why it crashes.",
            "It crashes because the database can't be reached.",
        ),
        (
            {"type": "abstention", "value": "cannot"},
            "Who accepted the parcel?",
            '{"status": "delivered"}',
            "It shows that the parcel was delivered, but not who accepted it.",
            "A neighbour accepted it.",
        ),
        # roundings differences and other lines are no rivals in a free text
        (
            {"type": "number", "value": 17, "unit": "EUR"},
            "What is the price for an adult?",
            "Adults  €17\nStudents  €11",
            "Adults pay €17, students get in for 11.",
            "Adults pay €11, students get in for 17, or so.",
        ),
        (
            {"type": "number", "value": 74.9, "unit": "MB"},
            "How large is the slim image?",
            "4.12.0-slim 74.9\n4.11.3-slim 79.4",
            "74.9 MB. The previous one was 4.5 MB bigger.",
            "74.9 MB, or 79.4.",
        ),
        (
            {"type": "number", "value": 48206913},
            "How many rows has it?",
            "shipments 48,206,913\nshipments_v1 48,602,913",
            "It has 48,206,913 rows, that's about 48.2 million.",
            "It has 48,206,913 rows, or about 48.6 million.",
        ),
        (
            {"type": "number", "value": 151.5},
            "What is the median?",
            "mean 184.37\nmedian 151.5",
            "The median is 151.5. The mean is higher: 184.37.",
            "151.5 is the mean, 184.37 the median.",
        ),
        (
            {"type": "choice", "value": "off-dry", "options": ["dry", "off-dry", "sweet"]},
            "Is the Tavkveri dry, off-dry or sweet?",
            "wine: Tavkveri 2024\nstyle: off-dry\nsee also: rosé 2025 (dry)",
            "Off-dry. Only the rosé is dry.",
            "Off-dry. It is dry.",
        ),
        (
            {"type": "yes_no", "value": True},
            "Is the switch turned on?",
            "sms  on\nemail  off",
            "It is on, yes.",
            "It is off.",
        ),
        (
            {"type": "pairs", "value": {"Cd": 0.42, "Pb": 55.6}},
            "What are the cadmium and lead concentrations in sample S-118?",
            '{"sample": "S-118", "unit": "mg/kg", "values": {"Cd": 0.42, "Cr": 31.0, "Pb": 55.6}}',
            "Cadmium is at 0.42 mg/kg and lead at 55.6 mg/kg.",
            "Lead is at 0.42 mg/kg and cadmium at 55.6 mg/kg.",
        ),
        (
            {"type": "yes_no", "value": False},
            "Is the working tree of tidewater clean right now?",
            "Changes not staged for commit:\n    modified: mail.py\nno changes added to commit",
            "No, src/mail.py has been modified.",
            "The working tree is clean; no changes were added to commit.",
        ),
        (
            {"type": "yes_no", "value": False},
            "Is a boat free on Sunday?",
            '{"sunday": []}',
            "No boats are free on Sunday.",
            "A boat is free on Sunday, no bookings.",
        ),
        (
            {"type": "abstention", "value": "cannot"},
            "How high is the birch pollen count in Uppsala today?",
            '{"place": "Uppsala", "observed": "2025-04-28T14:00+02:00", "temp_c": 13.2, "pollen": null}',
            "I cannot tell: the pollen field is empty.",
            "It's 0, there is no birch pollen in the air today.",
        ),
        (
            {"type": "yes_no", "value": False},
            "Did sample W-2304 pass the check?",
            "W-2303: PASS\nW-2304: FAIL",
            "It failed.",
            "It didn't fail.",
        ),
        (
            {"type": "yes_no", "value": True},
            "Did sample W-2305 pass the check?",
            "W-2304: FAIL\nW-2305: PASS",
            "It did not fail.",
            "I doubt that it didn't fail.",
        ),
        (
            {"type": "pairs", "value": {"amount": 5, "price": 12}},
            "What are the amount and the price?",
            "amount: 5\nprice: 12",
            "A 5, P 12",
            "It is a 12 for p 5.",
        ),
        (
            {"type": "set", "value": ["Africa/Lagos", "Africa/Nairobi"]},
            "Which of these have no daylight saving time: Lagos, Madrid, Nairobi?",
            "Africa/Lagos no\nEurope/Madrid yes\nAfrica/Nairobi no",
            "Lagos and Nairobi.",
            "Lagos, Madrid and Nairobi.",
        ),
        (
            {"type": "pairs", "value": {"height": 64.5, "width": 98.0}},
            "What are the height and width of the painting?",
            "| h cm | w cm |\n| 64.5 | 98.0 |",
            "W 98.0 cm, H 64.5 cm",
            "H 98.0 cm, W 64.5 cm",
        ),
        (
            {"type": "set", "value": ["methanol", "nitric acid 65%"]},
            "Which chemicals are low?",
            "methanol: low\nnitric acid 65%: low\nhexane: fine",
            "methanol, nitric acid",
            "methanol, nitric acid 60%",
        ),
        (
            {"type": "number", "value": 31},
            "Which ISO calendar week does 30 July 2025 fall in?",
            "iso_year: 2025\niso_week: 31",
            "2025-W31",
            "2025-W30",
        ),
        (
            {"type": "pairs", "value": {"Tokyo": "00:30", "New York": "10:30"}},
            "What time is that in Tokyo and in New York?",
            "Asia/Tokyo 2025-01-21 00:30\nAmerica/New_York 2025-01-20 10:30",
            "New York 10:30 a.m., Tokyo 12:30 a.m. (+1 day)",
            "New York 12:30 a.m. (+1 day), Tokyo 10:30 a.m.",
        ),
        (
            {"type": "abstention", "value": "cannot"},
            "What is the phone number on page contact?",
            "Failed to fetch https://c.example.com/contact - status code 404. The page could not be found.",
            "I don't have it. The fetch failed because the page doesn't exist.",
            "The fetch failed because the page doesn't exist. The phone number is on the imprint.",
        ),
        (
            {"type": "number", "value": -11, "unit": "°C"},
            "How cold will it get on Thursday night?",
            "day     high   low\nWed 11  -2 C   -7 C\nThu 12  -4 C   -11 C",
            "It will drop to -11 °C.",
            "It will drop to 11 °C.",
        ),
        (
            {"type": "name", "value": "Indigo"},
            "What is the name of release v3.2.0?",
            "tag     name    published\nv3.2.0  Indigo  2026-02-03\nv3.1.0  Ochre   2025-09-16",
            "Indigo, published on 2026-02-03.",
            "Ochre, published on 2026-02-03.",
        ),
        (
            {"type": "yes_no", "value": True},
            "Can anyone download without signing in?",
            "Anonymous users: GetObject allowed",
            "They can: the anonymous policy is set to `download`.",
            "They can't: the anonymous policy is set to `download`.",
        ),
        # remarks denials that are asked and spoken times are read
        (
            {"type": "choice", "value": "Attic", "options": ["Attic", "Red Room"]},
            "Is the piano in the Red Room or in the Attic?",
            "The piano was moved from the Red Room to the Attic. The Red Room now has the harmonium.",
            "In the Attic; the Red Room has the harmonium.",
            "In the Attic; the piano is in the Red Room.",
        ),
        (
            {"type": "choice", "value": "Profibulk", "options": ["Profibulk", "Munken Pure"]},
            "Which paper has the largest stock, Profibulk or Munken Pure?",
            "Profibulk 21750\nMunken Pure 18400 (ordered on Monday)",
            "Profibulk. Munken Pure was ordered on Monday.",
            "Profibulk. Actually no, Munken Pure is the one.",
        ),
        (
            {"type": "yes_no", "value": True},
            "Is the fix in version 4.2?",
            "fixed_in: 4.2\nbackport: none",
            "Yes. It was not backported to older releases.",
            "Yes. The fix is not in 4.2.",
        ),
        (
            {"type": "set", "value": ["Rope Walk", "Chapel Rise"]},
            "Which stops have no step-free access?",
            "Riverside,yes,new lift\nRope Walk,no\nChapel Rise,no\nCorn Exchange,yes",
            "Rope Walk and Chapel Rise don't have step-free access. Riverside has a new lift.",
            "Rope Walk and Chapel Rise don't exist.",
        ),
        (
            {"type": "set", "value": ["K-1", "K-2"]},
            "Which orders are unpaid?",
            "K-1,unpaid\nK-2,unpaid\nK-3,paid",
            "K-1 and K-2 haven't been paid yet.",
            "K-1, K-2 and K-3 haven't been paid yet.",
        ),
        (
            {"type": "pairs", "value": {"C3": 76, "E3": 64}},
            "What are the velocities of C3 and E3?",
            "pitch,velocity\nC3,76\nE3,64",
            "C3 has 76 and E3 has 64. E3 is the softest of them.",
            "C3 has 64 and E3 has 76. E3 is the softest of them.",
        ),
        (
            {"type": "number", "value": 1.5, "unit": "%"},
            "What share of the tests failed?",
            "tests_total=2400\nfailed_pct=1.5",
            "1.5%, that is 36 out of 2,400.",
            "36%, that is 36 out of 2,400.",
        ),
        (
            {"type": "number", "value": 14},
            "How many containers are running?",
            "Containers: 23\nRunning: 14\nStopped: 9",
            "14 of your 23 containers are running.",
            "All of your 23 containers are running.",
        ),
        (
            {"type": "number", "value": 21.7, "unit": "GB"},
            "How much space could I reclaim?",
            "size: 38.2 GB\nreclaimable: 21.7 GB",
            "You could free up 21.7 GB.",
            "It could be 21.7 GB.",
        ),
        (
            {"type": "date", "value": "13:30"},
            "Until when is the counter open?",
            "open until 13:30, phones until 12:00",
            "Until half past one.",
            "Until half past two.",
        ),
        (
            {"type": "date", "value": "2023-09-14"},
            "When was it last coated?",
            "coated: 2023-09-14\ncoated: 2017-08-30",
            "In September 2023, on the 14th to be exact.",
            "In September 2023, on the 30th to be exact.",
        ),
        # other lines offsets and everyday words are read in a free text
        (
            {"type": "date", "value": "2026-01-07"},
            "When was v3.2.0 released?",
            "| tag | published |\n|---|---|\n| v3.2.1 | 2026-02-04 |\n| v3.2.0 | 2026-01-07 |",
            "v3.2.0 came out on 2026-01-07. It was followed by v3.2.1 on 2026-02-04.",
            "v3.2.0 came out on 2026-02-04. It was followed by v3.2.1 on 2026-01-07.",
        ),
        (
            {"type": "number", "value": 52, "unit": "min"},
            "How many minutes did the nightly run take on 12 March?",
            "date        conclusion  minutes\n2026-03-13  success     47\n2026-03-12  success     52",
            "52 minutes. The run on the 13th took 47 minutes.",
            "52 minutes. Sorry, it took 47 minutes on the 12th.",
        ),
        (
            {"type": "date", "value": "2026-03-04T10:41"},
            "When does it arrive?",
            "a,2026-03-04T10:41\nb,2026-05-28T14:01",
            "2026-03-04T10:41, as planned",
            "2026-03-04T10:41 - sorry, I meant 2026-05-28T14:01",
        ),
        (
            {"type": "choice", "value": "before", "options": ["inside", "before", "after"]},
            "Does the meeting fall inside, before or after working hours?",
            '{"local_time": "07:30", "window": "09:00-17:00", "verdict": "before"}',
            "At 7:30 AM, which is before working hours (09:00-17:00).",
            "At 7:30 AM, which is inside working hours (09:00-17:00).",
        ),
        (
            {"type": "pairs", "value": {"Maya": "Kitefield", "Ian": "Brackwater"}},
            "Whom do Maya and Ian work for?",
            "Maya works_at Kitefield\nIan works_at Brackwater\nIan worked_at Kitefield",
            "Maya works for Kitefield and Ian for Brackwater (he used to be at Kitefield).",
            "Maya works for Kitefield and Ian for Brackwater (sorry, for Kitefield).",
        ),
        (
            {"type": "date", "value": "2026-04-04T17:00"},
            "When is the next match of Skerry United?",
            "2026-04-04 17:00  Skerry United - Holm IF (home)",
            "They play on 4 April 2026 at 17:00 against Holm IF.",
            "They play on 4 April 2026 at 17:00 if it is dry.",
        ),
        (
            {"type": "pairs", "value": {"Adelaide": "+10:30", "Caracas": "-04:00"}},
            "What UTC offsets do Adelaide and Caracas have?",
            "Australia/Adelaide +10:30\nAmerica/Caracas -04:00",
            "Adelaide is at UTC+10:30 and Caracas at UTC-04:00.",
            "Adelaide is at UTC+10:30 and Caracas at UTC+04:00.",
        ),
        (
            {"type": "pairs", "value": {"Rust": "71.4%", "TypeScript": "20.9%"}},
            "Which two languages have which share?",
            "Rust 71.4%\nTypeScript 20.9%\nShell 4.6%",
            "Rust makes up 71.4% and TypeScript makes up 20.9% of it.",
            "Rust makes up 71.4% and Shell makes up 20.9% of it.",
        ),
        (
            {"type": "number", "value": 19},
            "How many coins does the index contain?",
            "constituents: 19\nnote: one delisted constituent",
            "It contains 19 coins.",
            "It contains 18 coins, since one of the 19 was delisted.",
        ),
        (
            {"type": "number", "value": 4},
            "How many replicas are ready?",
            "NAME      READY\ncheckout  4/6",
            "4 are ready. Two pods are not ready yet.",
            "4 are ready. Not 4, two are ready.",
        ),
        (
            {"type": "number", "value": 412, "unit": "MB"},
            "How big is the image?",
            "size: 412 MB",
            "412 megs.",
            "412 gigs.",
        ),
        (
            {"type": "date", "value": "2026-04-18T08:07"},
            "When is low water?",
            "2026-04-18T08:07",
            "18/4 08:07",
            "18/5 08:07",
        ),
        (
            {"type": "date", "value": "2026-03-09T14:30"},
            "When is her appointment?",
            "2026-03-09T14:30, a crown",
            "On 9 March at half two for a crown.",
            "On 9 March at half three for a crown.",
        ),
        (
            {"type": "pairs", "value": {"city": 14, "e-bike": 29}},
            "What does each type of bike cost?",
            "city | 14\ne-bike | 29",
            "A city bike is 14, an e-bike 29.",
            "A city bike is 29, an e-bike 14.",
        ),
        (
            {"type": "number", "value": 3600, "unit": "s"},
            "What is the TTL?",
            "ttl 3600",
            "It is an hour.",
            "It is half an hour.",
        ),
        (
            {"type": "yes_no", "value": False},
            "May we show it at 80 lux?",
            "max_lux: 50",
            "Afraid not, 50 lux at most.",
            "Yes, 50 lux at most.",
        ),
        (
            {"type": "set", "value": ["Room 2", "Room 4", "Room 6"]},
            "Which rooms are closed?",
            "Room 2: closed\nRoom 4: closed\nRoom 5: open\nRoom 6: closed",
            "Rooms 2, 4 and 6.",
            "Rooms 2, 4, 5 and 6.",
        ),
        # what all things have in common may go unsaid
        (
            {"type": "pairs", "value": {"single": 98, "double": 145}},
            "What do the single and the double room cost?",
            "single | 98 EUR\ndouble | 145 EUR",
            "single 98 EUR, double 145 EUR",
            "single 145 EUR, double 98 EUR",
        ),
        (
            {"type": "pairs", "value": {"Ochre": "128 BPM", "Fen": "96 BPM"}},
            "How fast are Ochre and Fen?",
            "Ochre -> 128 BPM\nFen -> 96 BPM",
            "Ochre 128, Fen 96 BPM",
            "Ochre 128 km, Fen 96 BPM",
        ),
        (
            {"type": "pairs", "value": {"Field A": "812 kW", "Field B": "455 kW"}},
            "What is the output of each field?",
            "Field A = 812 kW\nField B = 455 kW",
            "A 812, B 455 kW",
            "A 455, B 812 kW",
        ),
        (
            {"type": "pairs", "value": {"4": "every 6 minutes", "6": "every 15 minutes"}},
            "How often do lines 4 and 6 run?",
            "* Line 4: every 6 minutes (was 8)\n* Line 6: every 15 minutes (was 12)",
            "line 6 every 15 min, line 4 every 6 min",
            "line 6 every 6 min, line 4 every 15 min",
        ),
        (
            {"type": "pairs", "value": {"queue:mail": 311, "queue:sms": 17}},
            "How many items wait in queue:mail and queue:sms?",
            "queue:mail 311\nqueue:sms 17",
            "sms 17; mail 311",
            "sms 311; mail 17",
        ),
        (
            {"type": "pairs", "value": {"invoice 1047": "OC/602", "invoice 1018": "HR-3301"}},
            "What is the order of invoice 1047 and of invoice 1018?",
            '[{"invoice": 1047, "order": "OC/602"}, {"invoice": 1018, "order": "HR-3301"}]',
            "1047 OC/602, 1018 HR-3301",
            "1047 HR-3301, 1018 OC/602",
        ),
        (
            {"type": "set", "value": ["study_window", "kitchen_window"]},
            "Which windows are open?",
            '{"study_window": "on", "attic_window": "off", "kitchen_window": "on"}',
            "kitchen and study",
            "attic, kitchen and study",
        ),
        (
            {"type": "list", "value": ["Field C", "Field A", "Field D"]},
            "In which order are the fields switched off?",
            '{"sequence": ["Field C", "Field A", "Field D", "Field B"]}',
            "C, A, D",
            "C, D, A",
        ),
        # words of a value in other forms, and what is said of another thing
        (
            {"type": "set", "value": ["Tuesday", "Saturday"]},
            "On which days is the chance of rain above 50 percent?",
            "Monday 35\nTuesday 78\nSaturday 64",
            "Rain is more than 50 % likely on Tuesday (78 %) and Saturday (64 %).",
            "Rain is likely on Tuesday, maybe Saturday.",
        ),
        (
            {"type": "pairs", "value": {"black": "14", "white": "9", "sage": "31"}},
            "How many lamps are there in each colour?",
            '[{"colour": "black", "n": 14}, {"colour": "white", "n": 9}, {"colour": "sage", "n": 31}]',
            "There are fourteen black lamps, nine white ones and thirty-one in sage.",
            "There are fourteen white lamps, nine black ones and thirty-one in sage.",
        ),
        (
            {"type": "name", "value": "https://meet.example.com/qhz-wvut"},
            "What is the link of the update?",
            '[{"link": "https://meet.example.com/qhz-wvut"}, {"link": "https://meet.example.com/tnf-hkro"}]',
            "It is meet.example.com/qhz-wvut.",
            "It is meet.example.com/tnf-hkro.",
        ),
        (
            {"type": "name", "value": "Coastal flood warning"},
            "Which warning is in force at the orange level?",
            '{"yellow": ["Dense fog advisory"], "orange": ["Coastal flood warning"]}',
            "A coastal flooding warning.",
            "A coastal fog warning.",
        ),
        (
            {"type": "name", "value": "Drop off the car at the garage"},
            "What comes first on Friday?",
            '["Drop off the car at the garage", "Pick up the car at the garage"]',
            "Dropping off the car at the garage.",
            "Picking up the car at the garage.",
        ),
        (
            {"type": "pairs", "value": {"birch": "high", "mugwort": "none"}},
            "How high are birch and mugwort?",
            '{"birch": "high", "mugwort": "none"}',
            "Birch is high, and there is no mugwort at all.",
            "Mugwort is high, and there is no birch at all.",
        ),
        (
            {"type": "set", "value": ["insurance card", "medication list"]},
            "What should a new patient bring?",
            "bring: insurance card\nbring: medication list\noptional: X-rays",
            "The insurance card and a list of medications.",
            "The insurance card and a list of X-rays.",
        ),
        (
            {"type": "date", "value": "2027-03", "precision": "month"},
            "When does lot L7740 expire?",
            "| Lot | Best before |\n|---|---|\n| L7722 | 2026-11 |\n| L7740 | 2027-03 |",
            "Lot L7740 is best before March 2027.",
            "Lot L7740 expires before March 2027.",
        ),
        (
            {"type": "pairs", "value": {"Elm": 45, "Oak": 7}},
            "How many loans do Elm and Oak have?",
            "Elm has 45 loans, Oak 7, and more than 3 readers came to each.",
            "Elm has 45 loans, Oak 7.",
            "Elm has more than 45 loans, Oak 7.",
        ),
        (
            {"type": "date", "value": "1897", "precision": "year"},
            "In what year was the crane put up?",
            "The crane was ordered in 1895 and put up in 1897.",
            "It was put up in 1897, two years after it had been ordered.",
            "It was put up in 1895, two years before.",
        ),
        (
            {"type": "number", "value": 4.27},
            "What is the rating of the Trailhead 40?",
            '[{"name": "Trailhead 30", "rating": 4.61}, {"name": "Trailhead 40", "rating": 4.27}]',
            "It is 4.27, so a little below the smaller Trailhead 30.",
            "It is 4.27, or 30.",
        ),
        (
            {"type": "number", "value": 3},
            "How many slots are free on Thursday?",
            "day: Thursday\nslots: 14\nfree: 3\n\nday: Friday\nslots: 10\nfree: 5",
            "Three. On Friday there are five, in case Thursday doesn't suit.",
            "Three. On Thursday there are five, in case Thursday doesn't suit.",
        ),
        (
            {"type": "number", "value": 31.4, "unit": "\u03bcg/m\u00b3"},
            "What is the PM2.5 level?",
            '{"units": {"pm2_5": "\u03bcg/m\u00b3"}, "pm10": 48.9, "pm2_5": 31.4}',
            "It has 31.4 micrograms of PM2.5 per cubic metre of air.",
            "It has 31.4 milligrams of PM2.5 per cubic metre of air.",
        ),
        (
            {"type": "name", "value": "Nicosia"},
            "Which of the cities will be warmest?",
            "| City | Temp |\n|--|--|\n| Nicosia | 26.8 |\n| Seville | 25.9 |",
            "It's Nicosia, just under a degree ahead of Seville.",
            "It's Nicosia, or just about Seville.",
        ),
        (
            {"type": "abstention", "value": "cannot"},
            "How thick is the ice on the lake?",
            '{"temperature": -16.3, "snow_depth": 0.38, "units": "m"}',
            "There is no information about the ice, only that it is -16.3 \u00b0C with 38 cm of snow.",
            "There is no information about the ice, only that it is -16.3 \u00b0C with 43 cm of snow.",
        ),
        (
            {"type": "name", "value": "trunk"},
            "What's the default branch of atlas-docs?",
            '[{"repo": "acme/atlas-core", "branch": "main"}, {"repo": "acme/atlas-docs", "branch": "trunk"}]',
            "It's called trunk (atlas-core uses main instead).",
            "It's called trunk (or main instead).",
        ),
        (
            {"type": "set", "value": ["Ada Kurz", "Bo Lind"]},
            "Who has accepted the invitation?",
            '[{"who": "Ada Kurz", "is": "accepted"}, {"who": "Bo Lind", "is": "accepted"}, '
            '{"who": "Cy Roth", "is": "declined"}]',
            "Ada Kurz and Bo Lind said yes; Cy Roth declined.",
            "Ada Kurz and Bo Lind said yes; Cy Roth accepted.",
        ),
        (
            {"type": "name", "value": "checkout-web@4.12.1"},
            "Which release did it first appear in?",
            "It was first seen in release checkout-web@4.12.1 and last in checkout-web@4.13.0.",
            "It first appeared in checkout-web 4.12.1.",
            "It first appeared in checkout-web 4.13.0.",
        ),
        # what chat models tell with a value is read
        (
            {"type": "name", "value": "Lake Run"},
            "Club of bib 12?",
            RUNNER,
            "Ada Kurz runs for **Lake Run** (class M Open, place 43).",
            "Ada Kurz runs for **Hill Run** (class M Open, place 43).",
        ),
        (
            {"type": "name", "value": "Ida Blum"},
            "Who is the teacher of the second lesson?",
            LESSONS,
            "| Time | Subject | Teacher |\n|--|--|--|\n| 11:40 | Art | Ida Blum |",
            "| Time | Subject | Teacher |\n|--|--|--|\n| 12:30 | Music | Kai Corte |",
        ),
        (
            {"type": "pairs", "value": {"bib 12": "M Open", "bib 15": "W Open"}},
            "What is the class of bib 12 and of bib 15?",
            RUNNERS,
            "| Bib | Runner | Class |\n|--|--|--|\n| 12 | Ada Kurz | M Open |\n| 15 | Bo Lind | W Open |",
            "| Bib | Runner | Class |\n|--|--|--|\n| 12 | Ada Kurz | W Open |\n| 15 | Bo Lind | M Open |",
        ),
        (
            {"type": "pairs", "value": {"wine W-1": "2023 to 2029", "wine W-2": "2024 to 2031"}},
            "Tell me the drink of wine W-1 and of wine W-2.",
            WINES,
            "Drink the W-1 between 2023 and 2029, the W-2 between 2024 and 2031.",
            "W-1: 2024-2031, W-2: 2023-2029",
        ),
        (
            {"type": "number", "value": 3},
            "How many lessons are there?",
            LESSONS,
            "There are 3 lessons:\n\n1. Latin\n2. Art\n3. Music",
            "There are 4 lessons:\n\n1. Latin\n2. Art\n3. Music",
        ),
        (
            {"type": "name", "value": "11:40"},
            "At what time is the second lesson?",
            LESSONS,
            "The second lesson is at 11:40. The first one is at 08:50.",
            "The first one is at 11:40, the second is at 08:50.",
        ),
        (
            {"type": "name", "value": "Ada Kurz"},
            "Who is the applicant of P-7?",
            '{"applicant": "Ada Kurz", "officer": "S. Jansen"}',
            "The applicant of P-7 is Ada Kurz. The officer in charge is S. Jansen.",
            "The applicant of P-7 is Ada Kurz. Or rather: S. Jansen.",
        ),
        (
            {"type": "number", "value": 1750578000},
            "When is wine W-1 from?",
            WINES,
            "From 22 June 2025, 07:40 UTC.",
            "From 23 June 2025, 07:40 UTC.",
        ),
    ],
)
def test_a_free_text_may_say_more_than_the_value_and_nothing_against_it(
    check: dict[str, Any], said: str, shown: str, right: str, wrong: str
) -> None:
    assert those_that_hold(check, (right, wrong), said=said, shown=shown, on_line=False) == [right]


@pytest.mark.parametrize("on_line", [True, False])
def test_pairs_that_a_step_returned_are_read_as_any(on_line: bool) -> None:
    check = AnswerCheck.model_validate({"type": "pairs", "value": "${step1.stock}"})
    results, text = {"step1": {"stock": {"A": 2, "B": 3}}}, "Answer: " * on_line + "A: 2, B: 3"
    assert answer_holds(check, text, results, on_line=on_line)
    assert not answer_holds(check, text.replace("2", "4"), results, on_line=on_line)


@pytest.mark.parametrize("on_line", [True, False])
def test_a_value_that_is_said_of_another_thing_is_no_answer(on_line: bool) -> None:
    check, asked = {"type": "number", "value": 6020}, "How many subscribers does Bread & Bytes have?"
    for right in ("Bread & Bytes: 6,020", "Bread & Bytes has 6,020 subscribers", "6,020 in all"):
        assert holds(check, right, said=asked, shown=SHOWS, on_line=on_line), right
    for wrong in (
        "Night Ferry has 6,020 subscribers",
        "Night Ferry: 6,020",
        "The show Night Ferry has 6,020",
    ):
        assert not holds(check, wrong, said=asked, shown=SHOWS, on_line=on_line), wrong


def test_a_reason_is_no_part_of_a_set_in_a_free_text() -> None:
    """That another lift runs again is no way to name it among those that are out."""
    check = {"type": "set", "value": ["L-12", "L-27", "L-44"]}
    answers = ("L-12, L-27 and L-44, as their doors jam.", "Just L-12 and L-27, as L-44 is running again.")
    shown = "L-12 out\nL-27 out\nL-44 out\nL-50 ok"
    assert those_that_hold(check, answers, said="Which lifts are out?", shown=shown, on_line=False) == [
        answers[0]
    ]


def test_what_was_shown_may_be_said_around_a_refusal() -> None:
    """With a month and a sign in words of one's own, but no other number."""
    right, wrong = (
        f"Gross fell by {amount} against February, but the reason is not stated."
        for amount in ("6,600", "7,600")
    )
    shown = "         Feb 2026   Mar 2026   change\ngross   62,000.00  55,400.00  -6,600.00"
    check = {"type": "abstention", "value": "cannot"}
    said = "Why did the pay drop in March?"
    assert those_that_hold(check, (right, wrong), said=said, shown=shown, on_line=False) == [right]


@pytest.mark.parametrize("on_line", [True, False])
@pytest.mark.parametrize("other", ["dune", "3.9-slim"])
def test_another_value_that_is_shown_is_none_of_a_set_wherever_it_stands(other: str, on_line: bool) -> None:
    shown = json.dumps({"tags": [{"name": name} for name in ("amber", "birch", "cedar")], "deleted": [other]})
    right = "The tags are amber, birch and cedar."
    wrong = [
        f"The tags are {told}."
        for told in (
            f"{other}, amber, birch and cedar",
            f"amber, {other}, birch and cedar",
            f"amber, birch, cedar and {other}",
        )
    ]
    check = {"type": "set", "value": ["amber", "birch", "cedar"]}
    held = those_that_hold(check, [right, *wrong], said="Which tags are there?", shown=shown, on_line=on_line)
    assert held == [right]


@pytest.mark.parametrize(
    ("check", "said", "shown", "answers"),
    [
        (
            {"type": "choice", "value": "Attic", "options": ["Attic", "Red Room"]},
            "Is the piano in the Red Room or in the Attic?",
            "The piano was moved from the Red Room to the Attic, and tuned there.",
            (
                "Attic. Red Room.",
                "Attic. Make it the Red Room.",
                "Attic. On second thought the Red Room.",
                "Attic. The Red Room is correct.",
                "It's in the Attic. It stands in the Red Room.",
                "Red Room. The Attic was tuned.",
                "Red Room tuned. Attic tuned. Red Room tuned.",
            ),
        ),
        (
            {"type": "yes_no", "value": True},
            "Is the fix in version 4.2?",
            "fixed_in: 4.2\nbackport: none",
            (
                "Yes. Nope.",
                "Yes. Not really.",
                "Yes, and no.",
                "Yes. The fix is not in 4.2.",
                "No. Backported.",
            ),
        ),
        (
            {"type": "name", "value": "Tomasz Wilk"},
            "Who is the assignee of PAY-640?",
            '[{"assignee": "Tomasz Wilk", "reporter": "A"}, {"assignee": "Ines Carvalho", "reporter": "B"}]',
            (
                "Tomasz Wilk. Ines Carvalho smiled.",
                "Tomasz Wilk. Ines Carvalho is the person in charge of it.",
                "Tomasz Wilk reported it. Ines Carvalho reported it.",
            ),
        ),
    ],
)
def test_what_offers_two_answers_in_two_sentences_gives_none(
    check: dict[str, Any], said: str, shown: str, answers: tuple[str, ...]
) -> None:
    assert those_that_hold(check, answers, said=said, shown=shown, on_line=False) == []


@pytest.mark.parametrize("head", ["Or", "Other class", "Maybe", "Alternative"])
@pytest.mark.parametrize("others", [("W Open", "M Open"), ("W Open", "W Open")])
def test_a_column_of_a_table_hides_no_second_value(head: str, others: tuple[str, str]) -> None:
    check = {"type": "pairs", "value": {"bib 12": "M Open", "bib 15": "W Open"}}
    table = (
        f"| Bib | Class | {head} |\n|--|--|--|\n| 12 | M Open | {others[0]} |\n| 15 | W Open | {others[1]} |"
    )
    said = "What is the class of bib 12 and of bib 15?"
    assert not those_that_hold(check, (table,), said=said, shown=RUNNERS, on_line=False)
