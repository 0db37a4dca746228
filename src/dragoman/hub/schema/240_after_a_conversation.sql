-- What is to do in a conversation goes with it. What was learned there is the tenant's: it stays, and is of no conversation.
create trigger conversations_removed after delete on conversations begin
    delete from todos where conversation_id = old.id;
    update memories set conversation_id = 0 where conversation_id = old.id;
end;
delete from todos where conversation_id <> 0 and conversation_id not in (select id from conversations);
update memories set conversation_id = 0
where conversation_id <> 0 and conversation_id not in (select id from conversations);
create index todos_in on todos (conversation_id) where conversation_id <> 0;
create index memories_in on memories (conversation_id) where conversation_id <> 0;
