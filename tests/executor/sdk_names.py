"""The public names of a2a-sdk 0.2.16, 0.3.26 and 1.3.0, by the module that defines them (one of them, if several do).

Names of type variables, generated models and single migrations are left out.
"""

from __future__ import annotations

NAMES: dict[str, str] = {
    "a2a.a2a_db_cli": ("create_parser run_migrations"),
    "a2a.auth.user": ("UnauthenticatedUser User"),
    "a2a.client": (
        "A2ACardResolver A2AClient A2AClientError A2AClientHTTPError A2AClientJSONError A2AClientTimeoutError "
        "A2AGrpcClient AgentCardResolutionError AuthInterceptor BaseClient Client ClientCallContext "
        "ClientCallInterceptor ClientConfig ClientEvent ClientFactory Consumer CredentialService "
        "InMemoryContextCredentialStore create_client create_text_message_object minimal_agent_card"
    ),
    "a2a.client.card_resolver": ("AGENT_CARD_WELL_KNOWN_PATH parse_agent_card"),
    "a2a.client.client_factory": (
        "PROTOCOL_VERSION_0_3 PROTOCOL_VERSION_1_0 PROTOCOL_VERSION_CURRENT VERSION_HEADER major_minor"
    ),
    "a2a.client.client_task_manager": ("ClientTaskManager"),
    "a2a.client.errors": ("A2AClientInvalidArgsError A2AClientInvalidStateError A2AClientJSONRPCError"),
    "a2a.client.interceptors": ("AfterArgs BeforeArgs"),
    "a2a.client.service_parameters": ("HTTP_EXTENSION_HEADER ServiceParametersFactory with_a2a_extensions"),
    "a2a.client.transports": ("ClientTransport GrpcTransport JsonRpcTransport RestTransport"),
    "a2a.client.transports.grpc": ("A2A_REASON_TO_ERROR"),
    "a2a.client.transports.http_helpers": (
        "get_http_args handle_http_exceptions parse_sse_stream send_http_request send_http_stream_request"
    ),
    "a2a.client.transports.jsonrpc": ("JSON_RPC_ERROR_CODE_MAP"),
    "a2a.client.transports.tenant_decorator": ("TenantTransportDecorator"),
    "a2a.compat.v0_3.a2a_v0_3_pb2": (
        "ROLE_AGENT ROLE_UNSPECIFIED ROLE_USER TASK_STATE_AUTH_REQUIRED TASK_STATE_CANCELLED "
        "TASK_STATE_COMPLETED TASK_STATE_FAILED TASK_STATE_INPUT_REQUIRED TASK_STATE_REJECTED "
        "TASK_STATE_SUBMITTED TASK_STATE_UNSPECIFIED TASK_STATE_WORKING"
    ),
    "a2a.compat.v0_3.a2a_v0_3_pb2_grpc": (
        "A2AService A2AServiceServicer A2AServiceStub add_A2AServiceServicer_to_server"
    ),
    "a2a.compat.v0_3.context_builders": (
        "LEGACY_HTTP_EXTENSION_HEADER V03GrpcServerCallContextBuilder V03ServerCallContextBuilder"
    ),
    "a2a.compat.v0_3.conversions": (
        "to_compat_agent_capabilities to_compat_agent_card to_compat_agent_card_signature "
        "to_compat_agent_extension to_compat_agent_interface to_compat_agent_provider to_compat_agent_skill "
        "to_compat_artifact to_compat_authentication_info to_compat_cancel_task_request "
        "to_compat_create_task_push_notification_config_request "
        "to_compat_delete_task_push_notification_config_request to_compat_get_extended_agent_card_request "
        "to_compat_get_task_push_notification_config_request to_compat_get_task_request "
        "to_compat_list_task_push_notification_config_request "
        "to_compat_list_task_push_notification_config_response to_compat_message to_compat_oauth_flows "
        "to_compat_part to_compat_push_notification_config to_compat_security_requirement "
        "to_compat_security_scheme to_compat_send_message_configuration to_compat_send_message_request "
        "to_compat_send_message_response to_compat_stream_response to_compat_subscribe_to_task_request "
        "to_compat_task to_compat_task_artifact_update_event to_compat_task_push_notification_config "
        "to_compat_task_status to_compat_task_status_update_event to_core_agent_capabilities "
        "to_core_agent_card to_core_agent_card_signature to_core_agent_extension to_core_agent_interface "
        "to_core_agent_provider to_core_agent_skill to_core_artifact to_core_authentication_info "
        "to_core_cancel_task_request to_core_create_task_push_notification_config_request "
        "to_core_delete_task_push_notification_config_request to_core_get_extended_agent_card_request "
        "to_core_get_task_push_notification_config_request to_core_get_task_request "
        "to_core_list_task_push_notification_config_request "
        "to_core_list_task_push_notification_config_response to_core_message to_core_oauth_flows to_core_part "
        "to_core_push_notification_config to_core_security_requirement to_core_security_scheme "
        "to_core_send_message_configuration to_core_send_message_request to_core_send_message_response "
        "to_core_stream_response to_core_subscribe_to_task_request to_core_task "
        "to_core_task_artifact_update_event to_core_task_push_notification_config to_core_task_status "
        "to_core_task_status_update_event"
    ),
    "a2a.compat.v0_3.extension_headers": ("add_legacy_extension_header"),
    "a2a.compat.v0_3.grpc_handler": ("CompatGrpcHandler"),
    "a2a.compat.v0_3.grpc_transport": ("CompatGrpcTransport"),
    "a2a.compat.v0_3.jsonrpc_transport": ("CompatJsonRpcTransport"),
    "a2a.compat.v0_3.model_conversions": (
        "compat_push_notification_config_model_to_core compat_task_model_to_core "
        "core_to_compat_push_notification_config_model core_to_compat_task_model"
    ),
    "a2a.compat.v0_3.proto_utils": (
        "FromProto ToProto dict_to_struct make_dict_serializable normalize_large_integers_to_strings "
        "parse_string_integers_in_dict"
    ),
    "a2a.compat.v0_3.request_handler": ("RequestHandler03"),
    "a2a.compat.v0_3.rest_adapter": ("REST03Adapter"),
    "a2a.compat.v0_3.rest_handler": ("REST03Handler"),
    "a2a.compat.v0_3.rest_transport": ("CompatRestTransport"),
    "a2a.compat.v0_3.types": (
        "A2AError A2ARequest APIKeySecurityScheme AgentCapabilities AgentCard AgentCardSignature "
        "AgentExtension AgentInterface AgentProvider AgentSkill Artifact "
        "AuthenticatedExtendedCardNotConfiguredError AuthorizationCodeOAuthFlow CancelTaskRequest "
        "CancelTaskResponse CancelTaskSuccessResponse ClientCredentialsOAuthFlow ContentTypeNotSupportedError "
        "DataPart DeleteTaskPushNotificationConfigParams DeleteTaskPushNotificationConfigRequest "
        "DeleteTaskPushNotificationConfigResponse DeleteTaskPushNotificationConfigSuccessResponse FileBase "
        "FilePart FileWithBytes FileWithUri GetAuthenticatedExtendedCardRequest "
        "GetAuthenticatedExtendedCardResponse GetAuthenticatedExtendedCardSuccessResponse "
        "GetTaskPushNotificationConfigParams GetTaskPushNotificationConfigRequest "
        "GetTaskPushNotificationConfigResponse GetTaskPushNotificationConfigSuccessResponse GetTaskRequest "
        "GetTaskResponse GetTaskSuccessResponse HTTPAuthSecurityScheme ImplicitOAuthFlow In InternalError "
        "InvalidAgentResponseError InvalidParamsError InvalidRequestError JSONParseError JSONRPCError "
        "JSONRPCErrorResponse JSONRPCMessage JSONRPCRequest JSONRPCResponse JSONRPCSuccessResponse "
        "ListTaskPushNotificationConfigParams ListTaskPushNotificationConfigRequest "
        "ListTaskPushNotificationConfigResponse ListTaskPushNotificationConfigSuccessResponse Message "
        "MessageSendConfiguration MessageSendParams MethodNotFoundError MutualTLSSecurityScheme "
        "OAuth2SecurityScheme OAuthFlows OpenIdConnectSecurityScheme Part PartBase PasswordOAuthFlow "
        "PushNotificationAuthenticationInfo PushNotificationConfig PushNotificationNotSupportedError Role "
        "SecurityScheme SecuritySchemeBase SendMessageRequest SendMessageResponse SendMessageSuccessResponse "
        "SendStreamingMessageRequest SendStreamingMessageResponse SendStreamingMessageSuccessResponse "
        "SetTaskPushNotificationConfigRequest SetTaskPushNotificationConfigResponse "
        "SetTaskPushNotificationConfigSuccessResponse Task TaskArtifactUpdateEvent TaskIdParams "
        "TaskNotCancelableError TaskNotFoundError TaskPushNotificationConfig TaskQueryParams "
        "TaskResubscriptionRequest TaskState TaskStatus TaskStatusUpdateEvent TextPart TransportProtocol "
        "UnsupportedOperationError"
    ),
    "a2a.compat.v0_3.versions": ("is_legacy_version"),
    "a2a.contrib.tasks.vertex_task_converter": (
        "to_sdk_artifact to_sdk_message to_sdk_metadata to_sdk_part to_sdk_task to_sdk_task_state "
        "to_stored_artifact to_stored_message to_stored_metadata to_stored_part to_stored_task "
        "to_stored_task_state"
    ),
    "a2a.contrib.tasks.vertex_task_store": ("VertexTaskStore"),
    "a2a.extensions.common": ("find_extension_by_uri get_requested_extensions update_extension_header"),
    "a2a.helpers": (
        "display_agent_card get_artifact_text get_data_parts get_message_text get_raw_parts "
        "get_stream_response_text get_text_parts get_url_parts new_artifact new_data_artifact "
        "new_data_artifact_update_event new_data_message new_data_part new_message new_raw_artifact "
        "new_raw_artifact_update_event new_raw_message new_raw_part new_task new_task_from_user_message "
        "new_text_artifact new_text_artifact_update_event new_text_message new_text_part "
        "new_text_status_update_event new_url_artifact new_url_artifact_update_event new_url_message "
        "new_url_part"
    ),
    "a2a.migrations.migration_utils": (
        "add_column add_index column_exists drop_column drop_index index_exists table_exists"
    ),
    "a2a.server.agent_execution": (
        "AgentExecutor RequestContext RequestContextBuilder SimpleRequestContextBuilder"
    ),
    "a2a.server.agent_execution.active_task": (
        "ActiveTask EventConsumer INTERRUPTED_TASK_STATES TERMINAL_TASK_STATES"
    ),
    "a2a.server.agent_execution.active_task_registry": ("ActiveTaskRegistry"),
    "a2a.server.apps": (
        "A2AFastAPIApplication A2ARESTFastAPIApplication A2AStarletteApplication CallContextBuilder "
        "JSONRPCApplication"
    ),
    "a2a.server.apps.jsonrpc": ("DefaultCallContextBuilder StarletteUserProxy"),
    "a2a.server.apps.jsonrpc.fastapi_app": (
        "A2AFastAPI DEFAULT_RPC_URL EXTENDED_AGENT_CARD_PATH PREV_AGENT_CARD_WELL_KNOWN_PATH"
    ),
    "a2a.server.apps.jsonrpc.jsonrpc_app": ("HTTP_413_CONTENT_TOO_LARGE HTTP_413_REQUEST_ENTITY_TOO_LARGE"),
    "a2a.server.apps.rest.rest_adapter": ("RESTAdapter"),
    "a2a.server.cluster": (
        "ConcurrentTaskModificationError DatabaseTaskEventStream LegacyTaskStoreAdapter StoredTask "
        "TaskEventStream TaskVersion VersionedDatabaseTaskStore VersionedEvent VersionedTaskStore"
    ),
    "a2a.server.cluster.database_event_stream": ("stream_response_to_event"),
    "a2a.server.context": ("ServerCallContext"),
    "a2a.server.events": (
        "Event EventQueue EventQueueLegacy InMemoryQueueManager NoTaskQueue QueueManager TaskQueueExists"
    ),
    "a2a.server.events.event_queue": ("DEFAULT_MAX_QUEUE_SIZE"),
    "a2a.server.events.event_queue_v2": ("EventQueueSink EventQueueSource"),
    "a2a.server.id_generator": ("IDGenerator IDGeneratorContext UUIDGenerator"),
    "a2a.server.jsonrpc_models": ("JSONRPCBaseModel"),
    "a2a.server.models": (
        "Base PushNotificationConfigMixin PushNotificationConfigModel PydanticListType PydanticType "
        "TaskEventMixin TaskEventModel TaskMixin TaskModel TaskVersionMixin TaskVersionModel "
        "create_push_notification_config_model create_task_event_model create_task_model "
        "create_task_version_model"
    ),
    "a2a.server.owner_resolver": ("resolve_user_scope"),
    "a2a.server.request_handlers": (
        "DefaultGrpcServerCallContextBuilder DefaultRequestHandler DefaultRequestHandlerV2 GrpcHandler "
        "GrpcServerCallContextBuilder JSONRPCHandler LegacyRequestHandler RESTHandler RequestHandler "
        "build_error_response prepare_response_object validate_request_params"
    ),
    "a2a.server.request_handlers.grpc_handler": ("A2A_ERROR_REASONS"),
    "a2a.server.request_handlers.request_handler": ("validate"),
    "a2a.server.request_handlers.response_helpers": ("EXCEPTION_MAP agent_card_to_dict"),
    "a2a.server.routes": (
        "DefaultServerCallContextBuilder ServerCallContextBuilder add_a2a_routes_to_fastapi "
        "create_agent_card_routes create_jsonrpc_routes create_rest_routes"
    ),
    "a2a.server.routes.common": ("StarletteUser create_event_source_response serialize_list_tasks_response"),
    "a2a.server.routes.fastapi_routes": ("REST_BODY_TYPES"),
    "a2a.server.routes.jsonrpc_dispatcher": ("INTERNAL_ERROR_CODE JsonRpcDispatcher"),
    "a2a.server.routes.rest_dispatcher": ("A2AJSONResponse RestDispatcher"),
    "a2a.server.tasks": (
        "BasePushNotificationSender DatabasePushNotificationConfigStore DatabaseTaskStore "
        "InMemoryPushNotificationConfigStore InMemoryTaskStore PushNotificationConfigStore "
        "PushNotificationEvent PushNotificationSender ResultAggregator TaskManager TaskStore TaskUpdater"
    ),
    "a2a.server.tasks.copying_task_store": ("CopyingTaskStoreAdapter"),
    "a2a.server.tasks.database_task_store": ("DEFAULT_LIST_TASKS_PAGE_SIZE"),
    "a2a.server.tasks.push_notification_config_store": ("normalize_push_notification_config"),
    "a2a.server.tasks.task_manager": ("append_artifact_to_task"),
    "a2a.types": (
        "AuthenticationInfo DeviceCodeOAuthFlow ExtendedAgentCardNotConfiguredError "
        "ExtensionSupportRequiredError GetExtendedAgentCardRequest ListTaskPushNotificationConfigsRequest "
        "ListTaskPushNotificationConfigsResponse ListTasksRequest ListTasksResponse MutualTlsSecurityScheme "
        "SecurityRequirement SendMessageConfiguration StreamResponse StringList SubscribeToTaskRequest "
        "VersionNotSupportedError"
    ),
    "a2a.types.a2a_pb2": ("TASK_STATE_CANCELED"),
    "a2a.utils": (
        "are_modalities_compatible build_text_artifact completed_task create_task_obj get_file_parts "
        "new_agent_parts_message new_agent_text_message proto_utils to_stream_response"
    ),
    "a2a.utils.constants": ("A2A_JSON_MEDIA_TYPE JSONRPC_PARSE_ERROR_CODE MAX_LIST_TASKS_PAGE_SIZE"),
    "a2a.utils.error_handlers": (
        "A2AErrorToHttpStatus A2A_DOMAIN A2A_ERROR_MAPPING BAD_REQUEST_TYPE ERROR_INFO_TYPE "
        "build_error_details build_rest_error_payload rest_error_handler rest_stream_error_handler"
    ),
    "a2a.utils.errors": (
        "A2AServerError A2A_REST_ERROR_MAPPING ErrorMapping MethodNotImplementedError ServerError"
    ),
    "a2a.utils.grpc_status": ("GRPC_STATUS_DETAILS_BIN_KEY GrpcStatus status_from_call status_to_grpc"),
    "a2a.utils.helpers": ("canonicalize_agent_card maybe_await validate_async_generator"),
    "a2a.utils.input_mode_validator": ("validate_input_modes"),
    "a2a.utils.json_utils": ("dumps"),
    "a2a.utils.proto_utils": (
        "ValidationDetail bad_request_to_validation_errors parse_lenient parse_params "
        "validate_proto_required_fields validation_errors_to_bad_request warn_on_missing_required_fields"
    ),
    "a2a.utils.push_url_validator": ("validate_push_notification_url"),
    "a2a.utils.signing": (
        "InvalidSignaturesError NoSignatureError ProtectedHeader SignatureVerificationError "
        "create_agent_card_signer create_signature_verifier"
    ),
    "a2a.utils.task": (
        "HistoryLengthConfig ListTasksCursor apply_history_length decode_list_tasks_cursor decode_page_token "
        "encode_list_tasks_cursor encode_page_token validate_history_length validate_page_size"
    ),
    "a2a.utils.telemetry": ("SpanKind"),
    "a2a.utils.version_validator": ("validate_version"),
}
