"""Flower's own SuperLink in this process: its state and its handlers, without the network between."""

import types

from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager
from flwr.superlink.grid.http_grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

SERVER = 1
"""The SuperLink's own node id."""


class InnerGrid(HttpGrid):
    """Flower's grid, whose requests are answered in this process: by nodes first, then by the SuperLink."""

    def __init__(self, link, client):
        super().__init__(token="x")
        self._client = client
        self._run = Run.create_empty(run_id=link.run_id)
        self._link = link

    def push_messages(self, messages):
        TaskIdentity._run_id, TaskIdentity._node_id = self._link.run_id, SERVER
        for message in (batch := list(messages)):
            message.metadata.__dict__.update(_run_id=self._link.run_id, _src_node_id=SERVER)
        return super().push_messages(batch)


class InnerSuperLink:
    """A SuperLink with a run and registered nodes; `grid` is what its ServerApp is given."""

    def __init__(self, nodes):
        factory = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory())
        self.state = factory.state()
        self.run_id = self.state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, None, "flwr-serverapp")
        (self.task,) = self.state.task_store.values()
        self.state.claim_task(self.task.task_id)
        self.state.activate_task(self.task.task_id)
        self.node_ids = []
        for place in range(nodes):
            self.node_ids.append(self.state.create_node("", "", b"key %d" % place, 0))
            self.state.activate_node(self.node_ids[-1], 3600)
        self.requests = 0
        self.answers = {}
        """What each node does with a message that it has pulled."""
        self.grid = InnerGrid(
            self,
            types.SimpleNamespace(
                **{
                    "GetNodes": self._handled(runtime_handlers.get_nodes),
                    "PushMessages": self._handled(runtime_handlers.push_messages),
                    "PullMessages": self._pulled,
                    "PushObject": self._handled(runtime_handlers.push_object),
                    "PullObject": self._handled(runtime_handlers.pull_object),
                    "ConfirmMessageReceived": self._handled(runtime_handlers.confirm_message_received),
                }
            ),
        )

    def _handled(self, handler):
        def handle(request):
            self.requests += 1
            # Over the network all of it would be copied.
            return handler(type(request).FromString(request.SerializeToString()), self.state, self.task)

        return handle

    def _pulled(self, request):
        """Before the shuffler looks for replies, all nodes have looked for messages."""
        for node_id, answer in self.answers.items():
            for message, tree in self.fetch(node_id):
                answer(self, node_id, message, tree)
        return self._handled(runtime_handlers.pull_messages)(request)

    # What a node does with its own key, and nothing else.

    def fetch(self, node_id):
        """The message that waits for a node, and its tree."""
        found = fleet_handlers.pull_messages(
            PullMessagesRequest(node=Node(node_id=node_id)), self.state, self.state.object_store
        )
        return list(zip(found.messages_list, found.message_object_trees, strict=True))

    def inflated(self, node_id, message, tree):
        """The message with its content."""
        contents = {}
        for part in iterate_object_tree(tree):
            request = PullObjectRequest(node=Node(node_id=node_id), run_id=self.run_id, object_id=part.object_id)
            contents[part.object_id] = fleet_handlers.pull_object(request, self.state).object_content
        whole = inflate_object_from_contents(message.metadata.message_id, contents)
        whole.metadata.__dict__["_message_id"] = message.metadata.message_id
        fleet_handlers.confirm_message_received(
            ConfirmMessageReceivedRequest(
                node=Node(node_id=node_id), run_id=self.run_id, message_object_id=message.metadata.message_id
            ),
            self.state,
            self.state.object_store,
        )
        return whole

    def push(self, node_id, message, *, tree=None, leave_out=()):
        """Push a message as a node; `leave_out` names kinds of objects that are announced and never uploaded."""
        with no_object_id_recompute():
            message.metadata.__dict__["_message_id"] = message.object_id
            objects = get_all_nested_objects(message)
            request = PushMessagesRequest(
                node=Node(node_id=node_id),
                messages_list=[message_to_proto(remove_content_from_message(message))],
                message_object_trees=[get_object_tree(message) if tree is None else tree],
            )
            response = fleet_handlers.push_messages(request, self.state)
            for object_id in response.objects_to_push:
                if object_id in objects and type(objects[object_id]).__name__ not in leave_out:
                    self.upload(node_id, response.session_id, object_id, objects[object_id].deflate())
        return response

    def upload(self, node_id, session, object_id, content):
        """Upload an object as a node."""
        fleet_handlers.push_object(
            PushObjectRequest(
                node=Node(node_id=node_id),
                run_id=self.run_id,
                object_id=object_id,
                object_content=content,
                session_id=session,
            ),
            self.state,
        )


def as_node(link, node_id):
    """Messages that are made from here on have this node as their source."""
    TaskIdentity._run_id, TaskIdentity._node_id = link.run_id, node_id


def metadata_of(message):
    """The metadata of a message as it came over the network."""
    return message_from_proto(message).metadata
