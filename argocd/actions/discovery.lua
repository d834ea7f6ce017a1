-- Which actions an object offers now.
local annotations = obj.metadata.annotations or {}
local status = obj.status or {}
local paused = annotations["tidemark.dev/paused"] == "true"
local actions = {
  pause = {disabled = paused or status.completionTime ~= nil},
  resume = {disabled = not paused},
}
if obj.kind == "RecordDeletion" then
  local reason = ""
  for _, condition in ipairs(status.conditions or {}) do
    if condition.type == "Stalled" then
      reason = condition.reason
    end
  end
  local failed = reason == "Timeout" or reason == "PartitionsFailed"
  local frozen = status.resolved ~= nil and #status.resolved <= 1024
  actions.retry = {disabled = not (failed and frozen) or obj.spec.ttlAfterFinished ~= nil}
end
return actions
