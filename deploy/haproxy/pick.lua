-- Asks kvbraid where a request goes: POST /internal/route (docs/haproxy.md).
local HOST, PORT = os.getenv("KVBRAID_HOST"), tonumber(os.getenv("KVBRAID_PORT"))
local TOKEN, PATIENCE_S = os.getenv("KVBRAID_TOKEN"), tonumber(os.getenv("KVBRAID_PATIENCE_S"))
local TOLD = { [404] = true, [413] = true, [429] = true, [503] = true }  -- Clients hear these.

local function question(txn)
  local body = txn.sf:req_body() or ""
  local full = math.max(tonumber(txn.sf:req_body_size()) or 0, #body)
  local session = txn.sf:req_hdr("x-session-id")
  local lines = { "POST /internal/route HTTP/1.1", "host: localhost", "content-length: " .. #body,
                  "x-kvbraid-path: " .. txn.sf:path(), "x-request-id: " .. txn.sf:unique_id() }
  if full > #body then lines[#lines + 1] = "x-body-truncated: " .. #body .. "/" .. full end
  if TOKEN and TOKEN ~= "" then lines[#lines + 1] = "authorization: Bearer " .. TOKEN end
  if session and session ~= "" then lines[#lines + 1] = "x-session-id: " .. session end
  return table.concat(lines, "\r\n") .. "\r\n\r\n" .. body
end

-- Connections to kvbraid that wait for the next question. Each thread of HAProxy has its own.
local idle = {}

-- Returns the status and the body of the answer; nil if there is none.
local function exchange(socket, text)
  local line = socket:send(text) and socket:receive("*l") or ""
  local status, length, stays = tonumber(line:match("^HTTP/1%.1 (%d+)")), nil, true
  while status and line ~= "" do
    line = socket:receive("*l")
    if not line then return nil end
    length = tonumber(line:match("^content%-length: (%d+)")) or length
    stays = stays and line ~= "connection: close"
  end
  local json = status and length and socket:receive(length)
  if not json then return nil end
  if stays then idle[#idle + 1] = socket else socket:close() end
  return status, json
end

local function seconds() return core.now().sec + core.now().usec / 1e6 end

local function ask(txn)
  local text, socket, since = question(txn), table.remove(idle), seconds()
  if socket then
    local status, json = exchange(socket, text)
    if status then return status, json end
    socket:close()  -- kvbraid may have closed it meanwhile. A question may be asked twice.
    if seconds() - since >= PATIENCE_S then return nil, "" end
  end
  socket = core.tcp()
  socket:settimeout(PATIENCE_S)
  local status, json
  if socket:connect(HOST, PORT) then status, json = exchange(socket, text) end
  if not status then socket:close() end
  return status, json or ""
end

core.register_action("pick", { "http-req" }, function(txn)
  local status, json = ask(txn)
  txn:set_var("txn.asked", status or 0)
  if TOLD[status] then
    local headers = { ["content-type"] = { "application/json" } }
    txn:done(txn:reply({ status = status, headers = headers, body = json }))
  end
  local host, port = json:match('"host":"([^"]+)"'), json:match('"port":(%d+)')
  if status ~= 200 or not host or not port then return end
  for name, value in (json:match('"request_headers":{(.-)}') or ""):gmatch('"([^"]+)":"([^"]*)"') do
    txn.http:req_set_header(name, value)
  end
  txn:set_var("txn.host", host) txn:set_var("txn.port", tonumber(port))
end)
