"""Which SQL is one plain SELECT: what changes something is refused in any dialect and any dress."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.tools.plain_select import is_name, why_not_plain

# What a database can be told other than to show rows, by the dialect that would do it.
HOSTILE = [
    "DELETE FROM plants",
    "UPDATE plants SET stock = 999",
    "INSERT INTO plants VALUES (3, 'ivy', 1)",
    "REPLACE INTO plants VALUES (1, 'ivy', 1)",
    "MERGE INTO plants USING orders ON plants.id = orders.plant WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE plants",
    "DROP TABLE plants",
    "CREATE TABLE copy AS SELECT * FROM plants",
    "ALTER TABLE plants RENAME TO gone",
    "WITH gone AS (DELETE FROM plants RETURNING *) SELECT * FROM gone",
    "WITH t AS (SELECT 1) DELETE FROM plants",
    "WITH t AS (SELECT 1) UPDATE plants SET stock = 0",
    "WITH t AS (SELECT 1) INSERT INTO plants SELECT 9, 'x', 9",
    "SELECT * INTO copy FROM plants",
    "SELECT * FROM plants INTO OUTFILE '/tmp/x'",
    "SELECT name INTO @a FROM plants",
    "SELECT * FROM plants FOR UPDATE",
    "SELECT * FROM plants FOR SHARE",
    "SELECT * FROM plants LOCK IN SHARE MODE",
    "SELECT * FROM plants WITH (TABLOCKX)",
    "SELECT setval('plants_id_seq', 1)",
    "SELECT nextval('plants_id_seq')",
    "SELECT NEXT VALUE FOR plants_id_seq",
    "SELECT plants_id_seq.NEXTVAL FROM dual",
    "SELECT load_extension('evil')",
    "SELECT pg_terminate_backend(1)",
    "SELECT lo_import('/etc/passwd')",
    "SELECT pg_sleep(60)",
    "SELECT dblink_exec('dbname=x', 'DELETE FROM plants')",
    "SELECT query_to_xml('DELETE FROM plants', true, true, '')",
    "SELECT writefile('x', name) FROM plants",
    "SELECT dbo.round(1)",
    'SELECT " evil"(1)',
    "SELECT 1 OPERATOR(public.@@@) 2",
    "SELECT @a := 5",
    "SELECT 1; DELETE FROM plants",
    "SELECT 1;; DELETE FROM plants",
    "SELECT 1 DELETE FROM plants",
    "SELECT 1 AS a, 2 DELETE FROM plants",
    "SELECT * DELETE FROM plants",
    "SELECT name FROM plants p UPDATE plants SET stock = 0",
    "SELECT name FROM plants WHERE 1 = 1 EXEC wipe",
    "SELECT name FROM plants ORDER BY 1 EXEC wipe",
    "SELECT * FROM OPENROWSET('x', 'y', 'DELETE FROM plants')",
    "WITH t AS (GRANT ALL ON plants TO evil) SELECT * FROM t",
    "SELECT 1 UNION SELECT 2 INTO copy",
    "SELECT {fn wipe()}",
    "SELECT * FROM plants SHUTDOWN",
    "SELECT 1 FROM plants ROLLBACK",
    'SELECT 1 FROM plants EXEC("DROP TABLE plants")',
    "SELECT 1 -- ; \nDELETE FROM plants",
    "SELECT 1 /* ; */ ; DELETE FROM plants",
    "SELECT 1 /*! INTO OUTFILE '/tmp/x' */",
    "SELECT 1 /*+ SET_VAR(sql_mode='') */",
    "SELECT 1 # \n; DELETE FROM plants",
    "SELECT 1 /* unclosed",
    "SELECT 'a\\'; DELETE FROM plants; SELECT 'b'",
    "SELECT $$ ' $$; DELETE FROM plants; SELECT $$ ' $$",
    "SELECT `a'`, ' ; DELETE FROM plants'",
    "SELECT [a'], ' ; DELETE FROM plants'",
    "SELECT '''; DELETE FROM plants; SELECT '''",
    "SELECT q'[']' FROM plants; DELETE FROM plants",
    "SELECT 1\0; DELETE FROM plants",
    "PRAGMA writable_schema = 1",
    "PRAGMA table_info(plants)",
    "SELECT * FROM pragma_table_info('plants')",
    "ATTACH DATABASE '/tmp/x' AS x",
    "DETACH DATABASE x",
    "VACUUM INTO '/tmp/x'",
    "EXPLAIN ANALYZE DELETE FROM plants",
    "EXPLAIN SELECT 1",
    "CALL wipe()",
    "EXEC wipe",
    "DO $$ BEGIN DELETE FROM plants; END $$",
    "COPY plants TO '/tmp/x'",
    "SET ROLE admin",
    "GRANT ALL ON plants TO evil",
    "BEGIN",
    "VALUES (1)",
    "TABLE plants",
    "FROM plants",
    "plants",
    "",
]
PLAIN = [
    "SELECT name FROM plants WHERE stock > 5 ORDER BY name DESC LIMIT 3",
    "select p.name, sum(o.qty) total from orders o join plants p on p.id = o.plant group by p.name "
    "having sum(o.qty) > 2",
    'SELECT "Unit Price" FROM "Order Details";',
    "SELECT count(*), COUNT(DISTINCT name) FROM plants",
    "WITH t AS (SELECT * FROM plants) SELECT * FROM t LEFT JOIN orders ON orders.plant = t.id",
    "SELECT name || '-' || id FROM plants WHERE name LIKE 'f%' AND NOT id IN (1, 2)",
    "SELECT CASE WHEN stock > 5 THEN 'many' ELSE 'few' END AS k FROM plants",
    "SELECT id, row_number() OVER (PARTITION BY name ORDER BY id) FROM plants",
    "SELECT id FROM plants UNION ALL SELECT id FROM orders",
    "SELECT CAST(stock AS REAL) / 2, round(avg(stock), 2) FROM plants",
    "SELECT name FROM plants WHERE id = ? AND EXISTS (SELECT 1 FROM orders WHERE plant = plants.id)",
    "SELECT strftime('%Y', day), substr(name, 1, 2) FROM plants WHERE date(day) >= '2024-01-01'",
    "SELECT name FROM plants WHERE name = 'C#' OR name = 'O''Brien' OR name = 'Drop; delete'",
    "SELECT close, open, date, year FROM prices",
    "SELECT name FROM sqlite_master WHERE type = 'table'",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_can_change_something_is_not_a_plain_select(text: str) -> None:
    assert why_not_plain(text) is not None


@pytest.mark.parametrize("text", PLAIN)
def test_questions_to_a_database_are_plain(text: str) -> None:
    assert why_not_plain(text) is None


_WRITES = [text for text in HOSTILE if text.startswith(("DELETE", "UPDATE", "INSERT", "DROP", "ALTER"))]


@given(
    st.sampled_from(PLAIN),
    st.sampled_from(_WRITES),
    st.sampled_from((";\n;", "/**/;", ")", "(", "'", '"', "`", ";;", " ", "--\n")),
)
def test_a_write_before_after_or_around_a_question_is_refused(plain: str, write: str, glue: str) -> None:
    for text in (plain + glue + write, write + glue + plain, f"{plain}{glue}{write}{glue}{plain}"):
        assert why_not_plain(text) is not None


@given(st.text(max_size=60))
def test_any_text_of_a_person_is_a_literal_and_never_a_statement(said: str) -> None:
    """A quoted value that is let through leaves a real database as it was."""
    text = f"SELECT count(*) FROM plants WHERE name = '{said}'"
    if why_not_plain(text) is None:
        with closing(sqlite3.connect(":memory:")) as database:
            database.execute("CREATE TABLE plants (name TEXT)")
            database.execute("INSERT INTO plants VALUES ('fern')")
            database.set_authorizer(
                lambda action, *_: sqlite3.SQLITE_OK if action in _READS else sqlite3.SQLITE_DENY
            )
            assert database.execute(text.strip().removesuffix(";")).fetchone()[0] in (0, 1)


_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION}


def test_deep_and_long_texts_end_at_once() -> None:
    assert "nested" in str(why_not_plain("SELECT " + "(" * 3000 + "1" + ")" * 3000))
    assert "characters" in str(why_not_plain("SELECT 1" + " " * 100_000))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plants", True),
        ("dbo.plants", True),
        ("VACUUM", False),
        ("shutdown", False),
        ("a b", False),
        ("a;b", False),
        ("", False),
    ],
)
def test_a_name_alone_is_no_statement(text: str, expected: bool) -> None:
    assert is_name(text) is expected
