-- A RecordDeletion runs once: another one is made, below exactly the offsets that the first one
-- had frozen, so that nothing goes that came since. It belongs to the first one, and goes with it.
local reason = ""
for _, condition in ipairs(obj.status.conditions or {}) do
  if condition.type == "Stalled" then
    reason = condition.reason
  end
end
if reason ~= "Timeout" and reason ~= "PartitionsFailed" or not obj.status.resolved then
  error("only what failed after its offsets were frozen can be tried again: make another one")
end
local partitions = {}
for _, point in ipairs(obj.status.resolved) do
  if point.offset >= 0 then -- -1 would mean everything
    table.insert(partitions, {partition = point.partition, beforeOffset = point.offset})
  end
end
local again = {
  apiVersion = obj.apiVersion,
  kind = obj.kind,
  metadata = {
    name = obj.metadata.name .. "-retry",
    namespace = obj.metadata.namespace,
    ownerReferences = {
      {apiVersion = obj.apiVersion, kind = obj.kind, name = obj.metadata.name, uid = obj.metadata.uid},
    },
  },
  spec = {
    topicRef = {name = obj.spec.topicRef.name},
    partitions = partitions,
    timeout = obj.spec.timeout,
    dryRun = obj.spec.dryRun,
  },
}
return {{operation = "create", resource = again}}
