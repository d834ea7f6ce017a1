-- The health of every kind of tidemark.dev, by the conditions that all of them have: docs/how-to/argocd.md.
-- An object that is being deleted never comes here: Argo CD itself says Progressing.
local status = obj.status or {}
local found = {}
for _, condition in ipairs(status.conditions or {}) do
  found[condition.type] = condition
end

local function is(name, value)
  return found[name] ~= nil and found[name].status == value
end

local function health(verdict, condition)
  local message = condition.reason
  if condition.message and condition.message ~= "" then
    message = message .. ": " .. condition.message
  end
  return {status = verdict, message = message}
end

-- What cannot be read never becomes the observed generation: the condition has its own.
local generation = obj.metadata.generation
if is("Stalled", "True") and found.Stalled.observedGeneration == generation then
  return health("Degraded", found.Stalled)
end
if found.Reconciling and found.Reconciling.reason == "Paused" then
  return health("Suspended", found.Reconciling)
end
if status.observedGeneration ~= generation then
  return {status = "Progressing", message = "the operator has not observed this generation yet"}
end
for _, name in ipairs({"RemoteStorageReady", "TierIntegrity"}) do
  if is(name, "False") then
    return health("Degraded", found[name])
  end
end
for _, name in ipairs({"Reconciling", "Draining"}) do
  if is(name, "True") then
    return health("Progressing", found[name])
  end
end
if is("Exporting", "False") and found.Exporting.reason == "Suspended" then
  return health("Suspended", found.Exporting)
end
local outcome = found.Ready or found.Succeeded
if outcome == nil or outcome.status ~= "True" then
  return health("Progressing", outcome or {reason = "Pending"})
end
-- The topic is served: other problems are shown, and fail no sync.
for _, name in ipairs({"FullyReplicated", "TieringSettled", "TierSwept", "RemoteIntegrity", "Exporting"}) do
  if is(name, "False") then
    return health("Healthy", found[name])
  end
end
if is("TieringLagging", "True") then
  return health("Healthy", found.TieringLagging)
end
return health("Healthy", outcome)
