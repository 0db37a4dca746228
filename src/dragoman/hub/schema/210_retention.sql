-- Which version of its agent a request is for; unknown for those from before. An agent that came with requests goes when they have gone.
alter table requests add column version integer;
create index requests_old on requests (started_at);
create index requests_for on requests (tenant_id, agent_id, version);
create index agent_versions_inline on agent_versions (at) where inline = 1;
-- What was said and has no answer yet.
create index messages_open on messages (created_at) where settled = 0 and role = 'user';
