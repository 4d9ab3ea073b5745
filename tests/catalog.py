"""What a PostgreSQL catalog says about our schemas, in words that two databases can share."""

import psycopg

SCHEMAS = "(select oid from pg_namespace where nspname ~ '^ql(_|$)' and nspname <> 'ql_migration')"
QUERIES = {
    "schema": f"""
      select n.nspname, n.nspowner::regrole::text, n.nspacl::text
      from pg_namespace as n where n.oid in {SCHEMAS} order by 1""",
    "relation": f"""
      select c.relnamespace::regnamespace::text, c.relname, c.relkind::text,
        c.relowner::regrole::text, c.relacl::text, c.reloptions::text,
        case when c.relkind = 'v' then pg_get_viewdef(c.oid) end,
        case when c.relkind = 'i' then pg_get_indexdef(c.oid) end
      from pg_class as c where c.relnamespace in {SCHEMAS} and c.relkind <> 't' order by 1, 2""",
    "column": f"""
      select c.oid::regclass::text, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
        a.attnotnull, a.attcollation::regcollation::text, a.attacl::text,
        pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
      from pg_attribute as a
      join pg_class as c on c.oid = a.attrelid
      left join pg_attrdef as d on d.adrelid = a.attrelid and d.adnum = a.attnum
      where c.relnamespace in {SCHEMAS} and a.attnum > 0 and c.relkind <> 't' order by 1, 2""",
    "constraint": f"""
      select o.conrelid::regclass::text, o.conname, pg_get_constraintdef(o.oid), o.convalidated
      from pg_constraint as o where o.connamespace in {SCHEMAS} order by 1, 2""",
    "function": f"""
      select p.oid::regprocedure::text, p.prosrc, p.proowner::regrole::text, p.proacl::text,
        p.prosecdef, p.provolatile::text, p.proparallel::text, p.proconfig::text,
        pg_get_function_result(p.oid), obj_description(p.oid, 'pg_proc')
      from pg_proc as p where p.pronamespace in {SCHEMAS} order by 1""",
    "trigger": f"""
      select t.tgrelid::regclass::text, t.tgname, pg_get_triggerdef(t.oid)
      from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
      where c.relnamespace in {SCHEMAS} and not t.tgisinternal order by 1, 2""",
}


def catalog(dsn: str) -> dict[str, list[tuple[object, ...]]]:
    """Every object of ours with its owner, grants and text, by kind."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return {kind: connection.execute(query).fetchall() for kind, query in QUERIES.items()}
