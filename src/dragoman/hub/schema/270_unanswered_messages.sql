-- Which messages of a conversation nobody has answered, without reading the others.
create index messages_unanswered on messages (conversation_id, id) where settled = 0 and role = 'user';
