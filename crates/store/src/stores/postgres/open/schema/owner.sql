-- The first object in the schema $1 that belongs to a role that this one does not trust, as text; no row if none.
-- Trusted are this role, the roles that it is a member of, superusers, and the owner of the database. Being a
-- superuser is no membership here: a superuser has most to lose in a schema of another role.
WITH RECURSIVE mine (role) AS (
    SELECT oid FROM pg_catalog.pg_roles WHERE rolname = current_user
    UNION
    SELECT m.roleid FROM pg_catalog.pg_auth_members m JOIN mine ON m.member = mine.role
), trusted (role) AS (
    SELECT role FROM mine
    UNION SELECT oid FROM pg_catalog.pg_roles WHERE rolsuper
    UNION SELECT datdba FROM pg_catalog.pg_database WHERE datname = current_database()
), space AS (
    SELECT oid, nspowner, nspacl FROM pg_catalog.pg_namespace WHERE nspname = $1::name
)
SELECT format('the schema belongs to the role %s', pg_get_userbyid(nspowner))
  FROM space WHERE nspowner NOT IN (SELECT role FROM trusted)
UNION ALL
SELECT 'every role may create objects in the schema'
  FROM space, aclexplode(nspacl) granted WHERE granted.grantee = 0 AND granted.privilege_type = 'CREATE'
UNION ALL
SELECT format('%s in the schema belongs to the role %s', relname, pg_get_userbyid(relowner))
  FROM pg_catalog.pg_class JOIN space ON relnamespace = space.oid WHERE relowner NOT IN (SELECT role FROM trusted)
UNION ALL
SELECT format('%s() in the schema belongs to the role %s', proname, pg_get_userbyid(proowner))
  FROM pg_catalog.pg_proc JOIN space ON pronamespace = space.oid WHERE proowner NOT IN (SELECT role FROM trusted)
LIMIT 1
