"""The SELECTs by which store/catalog.py reads every object of ours, one kind of object each.

Each gives rows of a name, what is stored of it, who may do what with it, and how it is printed.
"""

OURS = "select n.oid from pg_namespace as n where n.nspname ~ '^ql(_|$)'"


def _sha(text: str) -> str:
    return f"encode(sha256(convert_to({text}, 'UTF8')), 'hex')"


def _may(acl: str, owner: str, column: str = "") -> str:
    """Rows (grantee, privilege) of a list of rights.

    An owner's right MAINTAIN is left out: only servers from 17 know it.
    """
    word = f"x.privilege_type || ' (' || {column} || ')'" if column else "x.privilege_type"
    return f"""
      select case x.grantee when 0 then 'PUBLIC' else pg_get_userbyid(x.grantee) end as grantee,
        {word} || case when x.is_grantable then ' with grant option' else '' end as privilege
      from aclexplode({acl}) as x
      where not (x.grantee = {owner} and x.privilege_type = 'MAINTAIN')"""


def _rights(*rows: str) -> str:
    union = " union all ".join(rows)
    return f"""(
      select coalesce(jsonb_object_agg(g.grantee, g.privileges), '{{}}')
      from (
        select m.grantee, string_agg(m.privilege, ', ' order by m.privilege collate "C")
          as privileges
        from ({union}) as m group by m.grantee
      ) as g)"""


SCHEMAS = f"""
  select 'schema ' || n.nspname,
    jsonb_build_object('owner', pg_get_userbyid(n.nspowner)),
    {_rights(_may("coalesce(n.nspacl, acldefault('n', n.nspowner))", "n.nspowner"))},
    '{{}}'::jsonb
  from pg_namespace as n where n.oid in ({OURS})"""
_COLUMNS = """(
      select coalesce(jsonb_object_agg('column ' || o.attname, o.words), '{}')
      from (
        select a.attname,
          concat_ws(' ', row_number() over (order by a.attnum) || '.',
            format_type(a.atttypid, a.atttypmod), case when a.attnotnull then 'not null' end,
            'collate ' || nullif(l.collname, 'default'),
            'identity ' || nullif(a.attidentity::text, ''),
            'generated ' || nullif(a.attgenerated::text, '')) as words
        from pg_attribute as a
        left join pg_collation as l on l.oid = a.attcollation
        where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
      ) as o)"""
_TYPE_ACL = """(
          select coalesce(t.typacl, acldefault('T', t.typowner)) from pg_type as t
          where t.oid = c.reltype)"""
# A DBA may tune autovacuum, and where a table lies; the rest of its options is ours.
RELATIONS = f"""
  select case c.relkind when 'r' then 'table' when 'v' then 'view' when 'i' then 'index'
      when 'c' then 'type' when 'S' then 'sequence' else 'relation of kind ' || c.relkind::text end
      || ' ' || n.nspname || '.' || c.relname,
    jsonb_strip_nulls(jsonb_build_object(
      'owner', pg_get_userbyid(c.relowner),
      'persistence', case c.relpersistence when 'u' then 'unlogged' when 't' then 'temporary' end,
      'access method', nullif(m.amname, 'heap'),
      'row security', case when c.relrowsecurity or c.relforcerowsecurity then 'on' end,
      'option', (
        select string_agg(o.word, ', ' order by o.word collate "C")
        from unnest(c.reloptions) as o (word)
        where o.word !~ '^(log_)?autovacuum_'
      ),
      'state', case when not (i.indisvalid and i.indisready and i.indislive) then 'not valid' end,
      'what it reads', case when c.relkind = 'v' then {
    _sha('''(
        select string_agg(d.word, ' ' order by d.word collate "C")
        from (
          select distinct case
              when d.refclassid = 'pg_proc'::regclass then d.refobjid::regprocedure::text
              else d.refobjid::regclass || coalesce('.' || a.attname, '')
            end as word
          from pg_rewrite as w
          join pg_depend as d on d.classid = 'pg_rewrite'::regclass and d.objid = w.oid
          left join pg_attribute as a
            on a.attrelid = d.refobjid and a.attnum = d.refobjsubid and d.refobjsubid > 0
          where w.ev_class = c.oid
            and d.refobjid <> c.oid
            and d.refclassid in ('pg_class'::regclass, 'pg_proc'::regclass)
        ) as d
      )''')
} end
    )) || case when c.relkind = 'i' then '{{}}' else {_COLUMNS} end,
    case c.relkind
      when 'i' then '{{}}'
      when 'c' then {_rights(_may(_TYPE_ACL, "c.relowner"))}
      else {
    _rights(
        _may("coalesce(c.relacl, acldefault('r', c.relowner))", "c.relowner"),
        '''select r.grantee, r.privilege from pg_attribute as a cross join lateral ('''
        + _may("a.attacl", "c.relowner", "a.attname")
        + ''') as r where a.attrelid = c.oid and a.attacl is not null''',
    )
} end,
    jsonb_strip_nulls(jsonb_build_object(
      'definition', case c.relkind
        when 'v' then {_sha("pg_get_viewdef(c.oid)")}
        when 'i' then {_sha("pg_get_indexdef(c.oid)")}
      end
    )) || (
      select coalesce(jsonb_object_agg('default of ' || a.attname,
        {_sha("pg_get_expr(d.adbin, d.adrelid)")}), '{{}}')
      from pg_attrdef as d join pg_attribute as a on a.attrelid = d.adrelid and a.attnum = d.adnum
      where d.adrelid = c.oid
    )
  from pg_class as c
  join pg_namespace as n on n.oid = c.relnamespace
  left join pg_am as m on m.oid = c.relam and c.relkind = 'r'
  left join pg_index as i on i.indexrelid = c.oid
  where c.relnamespace in ({OURS})"""
# A composite type is a relation above; a table's row type is told when it has rights of its own.
TYPES = f"""
  select case when c.oid is null then 'type ' else 'row type ' end
      || n.nspname || '.' || t.typname,
    jsonb_build_object('owner', pg_get_userbyid(t.typowner), 'kind', t.typtype),
    {_rights(_may("coalesce(t.typacl, acldefault('T', t.typowner))", "t.typowner"))},
    '{{}}'::jsonb
  from pg_type as t
  join pg_namespace as n on n.oid = t.typnamespace
  left join pg_class as c on c.oid = t.typrelid
  where t.typnamespace in ({OURS})
    and not exists (select from pg_type as e where e.typarray = t.oid)
    and (c.oid is null or (t.typacl is not null and c.relkind <> 'c'))"""
FUNCTIONS = f"""
  select case p.prokind when 'f' then 'function ' when 'p' then 'procedure ' else 'aggregate ' end
      || n.nspname || '.' || p.proname || '('
      || pg_get_function_identity_arguments(p.oid) || ')',
    jsonb_strip_nulls(jsonb_build_object(
      'owner', pg_get_userbyid(p.proowner),
      'body', {_sha("p.prosrc")},
      'other body', case when p.probin is not null or p.prosqlbody is not null then 'yes' end,
      'language', l.lanname,
      'result', pg_get_function_result(p.oid),
      'volatility', case p.provolatile when 'i' then 'immutable' when 's' then 'stable'
        else 'volatile' end,
      'parallel', case p.proparallel when 's' then 'safe' when 'r' then 'restricted' end,
      'strict', case when p.proisstrict then 'yes' end,
      'leakproof', case when p.proleakproof then 'yes' end,
      'security', case when p.prosecdef then 'definer' end,
      'cost', case when p.procost <> 100 then p.procost::text end,
      'rows', case when p.prorows not in (0, 1000) then p.prorows::text end,
      'support', nullif(p.prosupport::text, '-'),
      'set clause', (select string_agg(s.word, '; ' order by s.word collate "C")
        from unnest(p.proconfig) as s (word))
    )),
    {_rights(_may("coalesce(p.proacl, acldefault('f', p.proowner))", "p.proowner"))},
    jsonb_build_object('parameter list', {_sha("pg_get_function_arguments(p.oid)")})
  from pg_proc as p
  join pg_namespace as n on n.oid = p.pronamespace
  join pg_language as l on l.oid = p.prolang
  where p.pronamespace in ({OURS})"""
# `n`: only servers from 18 have a row for `not null`, which the column says anyway.
CONSTRAINTS = f"""
  select 'constraint ' || o.conname || ' on ' || coalesce(
      case when r.relnamespace in ({OURS}) then o.conrelid::regclass::text end,
      nullif(o.contypid, 0)::regtype::text,
      o.conrelid::regclass || ', which is not ours but refers to ' || o.confrelid::regclass),
    jsonb_strip_nulls(jsonb_build_object(
      'kind', o.contype,
      'state', case when not o.convalidated or to_jsonb(o) ->> 'conenforced' = 'false'
        then 'not valid' end,
      'enforcement', case when exists (
        select from pg_trigger as t where t.tgconstraint = o.oid and t.tgenabled <> 'O'
      ) then 'disabled' end
    )),
    '{{}}'::jsonb,
    jsonb_build_object('definition', {_sha("pg_get_constraintdef(o.oid)")})
  from pg_constraint as o
  left join pg_class as r on r.oid = o.conrelid
  left join pg_class as f on f.oid = o.confrelid
  where (o.connamespace in ({OURS}) or r.relnamespace in ({OURS}) or f.relnamespace in ({OURS}))
    and (o.contype <> 'n' or not o.convalidated)"""
# What hangs on our tables, and whatever else lies in our schemas: we ship nothing of the kind.
OTHERS = f"""
  select x.name, '{{}}'::jsonb, '{{}}'::jsonb, '{{}}'::jsonb
  from (
    select 'trigger ' || t.tgname || ' on ' || t.tgrelid::regclass as name
    from pg_trigger as t join pg_class as c on c.oid = t.tgrelid
    where c.relnamespace in ({OURS}) and not t.tgisinternal
    union all
    select 'rule ' || w.rulename || ' on ' || w.ev_class::regclass
    from pg_rewrite as w join pg_class as c on c.oid = w.ev_class
    where c.relnamespace in ({OURS})
      and (w.rulename <> '_RETURN' or w.ev_enabled <> 'O' or c.relkind <> 'v')
    union all
    select 'policy ' || p.polname || ' on ' || p.polrelid::regclass
    from pg_policy as p join pg_class as c on c.oid = p.polrelid
    where c.relnamespace in ({OURS})
    union all
    select 'table ' || i.inhrelid::regclass || ', which inherits ' || i.inhparent::regclass
    from pg_inherits as i join pg_class as c on c.oid = i.inhparent
    where c.relnamespace in ({OURS}) and c.relkind <> 'i'
    union all
    select 'default privileges of ' || pg_get_userbyid(d.defaclrole)
      || case when d.defaclnamespace = 0 then '' else ' in ' || d.defaclnamespace::regnamespace end
    from pg_default_acl as d
    where d.defaclnamespace in ({OURS}) or pg_get_userbyid(d.defaclrole) ~ '^ql_'
    union all
    select pg_describe_object(d.classid, d.objid, d.objsubid)
    from pg_depend as d
    where d.refclassid = 'pg_namespace'::regclass and d.refobjid in ({OURS})
      and d.classid not in ('pg_class'::regclass, 'pg_proc'::regclass, 'pg_type'::regclass,
        'pg_constraint'::regclass, 'pg_default_acl'::regclass)
  ) as x"""
OBJECTS = (SCHEMAS, RELATIONS, TYPES, FUNCTIONS, CONSTRAINTS, OTHERS)
