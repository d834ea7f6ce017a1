"""What the store keeps of thousands of objects: of equal texts one."""

import json

from tidemark_operator.kube.kinds import TOPIC
from tidemark_operator.objects.store import ObjectStore


def _answer(number: int) -> str:
    """An object as an answer of the API server brings it."""
    conditions = [{"type": "Ready", "status": "True", "message": "3 partitions, all in sync"}]
    return json.dumps(
        {
            "apiVersion": TOPIC.api_version,
            "kind": "Topic",
            "metadata": {
                "namespace": "ns",
                "name": f"t{number}",
                "uid": f"uid-{number}",
                "resourceVersion": str(number),
                "managedFields": [{}],
            },
            "spec": {"partitions": 3, "internal": False, "config": {"retention.ms": "1000"}},
            "status": {"conditions": conditions, "leftOver": None},
        }
    )


def test_objects_share_the_texts_that_they_have_in_common() -> None:
    store = ObjectStore()
    for number in (1, 2):
        assert store.put(json.loads(_answer(number)))
    first, second = store.of_kind(TOPIC)
    wanted = json.loads(_answer(1))
    del wanted["metadata"]["managedFields"]
    assert first == wanted
    for one, other in zip(first["metadata"], second["metadata"], strict=True):
        assert one is other
    (ready,), (also,) = (each["status"]["conditions"] for each in (first, second))
    assert ready["message"] is also["message"]
    assert first["spec"]["config"]["retention.ms"] is second["spec"]["config"]["retention.ms"]
