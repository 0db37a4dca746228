-- Each entry carries a hash of itself and of the one before it. Those from before this have none.
alter table audit add column hash blob;
