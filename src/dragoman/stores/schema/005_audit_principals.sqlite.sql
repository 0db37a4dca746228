-- Nobody looks for what nobody did: an entry without a principal need not be found by it.
drop index audit_principal;
create index audit_principal on audit (principal, id) where principal <> '';
