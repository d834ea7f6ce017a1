-- Nothing is changed, placed or deleted for this object before it is resumed.
obj.metadata.annotations = obj.metadata.annotations or {}
obj.metadata.annotations["tidemark.dev/paused"] = "true"
return obj
