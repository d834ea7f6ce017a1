-- Takes a pause back.
if obj.metadata.annotations then
  obj.metadata.annotations["tidemark.dev/paused"] = nil
end
return obj
