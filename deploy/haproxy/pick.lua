-- Asks kvbraid where a request goes: POST /internal/route (docs/haproxy.md).
local HOST, PORT = os.getenv("KVBRAID_HOST"), tonumber(os.getenv("KVBRAID_PORT"))
local TOKEN, PATIENCE_S = os.getenv("KVBRAID_TOKEN"), tonumber(os.getenv("KVBRAID_PATIENCE_S"))
local TOLD = { [404] = true, [413] = true, [429] = true, [503] = true }  -- Clients hear these.

local function question(txn)
  local body = txn.sf:req_body() or ""
  local full = math.max(tonumber(txn.sf:req_body_size()) or 0, #body)
  local session = txn.sf:req_hdr("x-session-id")
  local lines = { "POST /internal/route HTTP/1.0", "host: localhost", "content-length: " .. #body,
                  "x-kvbraid-path: " .. txn.sf:path(), "x-request-id: " .. txn.sf:unique_id() }
  if full > #body then lines[#lines + 1] = "x-body-truncated: " .. #body .. "/" .. full end
  if TOKEN and TOKEN ~= "" then lines[#lines + 1] = "authorization: Bearer " .. TOKEN end
  if session and session ~= "" then lines[#lines + 1] = "x-session-id: " .. session end
  return table.concat(lines, "\r\n") .. "\r\n\r\n" .. body
end

local function ask(txn)
  local socket = core.tcp()
  socket:settimeout(PATIENCE_S)
  if not socket:connect(HOST, PORT) or not socket:send(question(txn)) then return nil, "" end
  local answer = socket:receive("*a") or ""
  socket:close()
  return tonumber(answer:match("^HTTP/1%.%d (%d+)")), answer:match("\r\n\r\n(.*)$") or ""
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
