-- SPDX-License-Identifier: GPL-2.0-or-later OR BSD-2-Clause
--
-- Shows Usher's token in SYNs and its control channel in Wireshark and tshark, version 4.0 or later:
--
--     tshark -X lua_script:usher.lua -r FILE -Y usher
--
-- docs/operation.md lists the fields, docs/PROTOCOL.md has both formats. Wireshark dissects TCP and TLS
-- as it always does; this script then reads its fields and adds a tree of its own. So it also sees an
-- option that runs past the end of its header, with which Wireshark calls no dissector of options.

-- docs/PROTOCOL.md, "Token in the SYN"
local TOKEN_KIND = 253
local TOKEN_SIZE = 20
local TOKEN_EXPERIMENT = 0x5573

-- docs/PROTOCOL.md, "Control channel"
local CHANNEL_PORT = 3440
local CHANNEL_ALPN = "usher/1"

-- RFC 793: the only options of one byte
local END_OF_OPTIONS = 0
local NO_OPERATION = 1

-- RFC 8446, sections 4.2.1 and 4; RFC 7250, section 3
local TLS_1_3 = 0x0304
local CLIENT_HELLO = 1
local RAW_PUBLIC_KEY = 2

local usher = Proto("usher", "Usher")

local shown = {
   token = ProtoField.none("usher.token", "Token"),
   slot = ProtoField.uint24("usher.token.slot", "Slot", base.DEC_HEX, nil, nil, "The server's name for the session"),
   position = ProtoField.uint8("usher.token.position", "Position", base.DEC, nil, nil, "Its low byte"),
   masked = ProtoField.bytes("usher.token.masked", "Masked element", base.NONE, "The element and a zero byte, XOR a mask"),
   channel = ProtoField.none("usher.channel", "Control channel"),
   is_from_client = ProtoField.bool("usher.channel.from_client", "From the client host"),
   alpn = ProtoField.string("usher.channel.alpn", "Protocol offered by the client"),
}
usher.fields = shown

local malformed = ProtoExpert.new("usher.token.malformed", "Token is malformed", expert.group.MALFORMED, expert.severity.ERROR)
local cut = ProtoExpert.new("usher.token.cut", "Token was not captured whole", expert.group.UNDECODED, expert.severity.WARN)
local refused = ProtoExpert.new("usher.channel.refused", "Client offers no control channel", expert.group.PROTOCOL, expert.severity.WARN)
usher.experts = { malformed, cut, refused }

local tcp_options = Field.new("tcp.options")
local tcp_stream = Field.new("tcp.stream")
local tcp_source = Field.new("tcp.srcport")
local tcp_destination = Field.new("tcp.dstport")
local tls_record = Field.new("tls.record")
local tls_handshake = Field.new("tls.handshake.type")
local tls_alpn = Field.new("tls.handshake.extensions_alpn_str")
local tls_version = Field.new("tls.handshake.extensions.supported_version")
local tls_key_form = Field.new("tls.handshake.cert_type.type")

-- The server's port of each TCP stream whose client has offered a control channel, by the stream's number.
local servers = {}

function usher.init()
   servers = {}
end

-- The bytes that the header has for options. `options` may have fewer: a capture may cut packets.
local function declared_size(options)
   -- The number of 32-bit words of the header is the upper half of its byte 12; options begin at byte 20.
   local offset = options.source:range(options.offset - 8, 1)
   return offset:bitfield(0, 4) * 4 - 20
end

-- Shows an option that begins at `start` and has these bytes in its header and in the capture.
local function show_token(bytes, start, size, in_header, captured, packet, add)
   local token = add(shown.token, bytes:range(start, math.min(size, captured)))
   local mistake
   if size ~= TOKEN_SIZE then
      mistake = string.format("its length is %d instead of %d", size, TOKEN_SIZE)
   elseif in_header < TOKEN_SIZE then
      mistake = string.format("the TCP header ends after %d of its %d bytes", in_header, TOKEN_SIZE)
   end
   if mistake then
      token:add_proto_expert_info(malformed, "Token is malformed: " .. mistake)
      packet.cols.info:append(" [Usher token, malformed]")
   elseif captured < TOKEN_SIZE then
      token:add_proto_expert_info(cut, string.format("Only %d of its %d bytes were captured", captured, TOKEN_SIZE))
      packet.cols.info:append(" [Usher token, cut by the capture]")
   else
      local slot, position = bytes:range(start + 4, 3), bytes:range(start + 7, 1)
      token:add(shown.slot, slot)
      token:add(shown.position, position)
      token:add(shown.masked, bytes:range(start + 8, 12))
      token:append_text(string.format(": slot %d, position %d", slot:uint(), position:uint()))
      packet.cols.info:append(string.format(" [Usher token slot=%d position=%d]", slot:uint(), position:uint()))
   end
end

-- Goes through the options as the server's kernel does.
local function show_tokens(options, packet, add)
   local bytes, captured, declared = options.range, options.len, declared_size(options)
   local at = 0
   while at < captured do
      local kind = bytes:range(at, 1):uint()
      if kind == END_OF_OPTIONS then
         return
      elseif kind == NO_OPERATION then
         at = at + 1
      else
         if at + 2 > captured then
            return
         end
         local size = bytes:range(at + 1, 1):uint()
         if size < 2 then
            return
         end
         -- An option of less than 4 bytes has no experiment, and may be anyone's.
         if kind == TOKEN_KIND and size >= 4 and at + 4 <= captured and bytes:range(at + 2, 2):uint() == TOKEN_EXPERIMENT then
            show_token(bytes, at, size, declared - at, captured - at, packet, add)
         end
         at = at + size
      end
   end
end

local function has(fields, value)
   for _, field in ipairs(fields) do
      if field.value == value then
         return true
      end
   end
   return false
end

-- Shows what is readable of a control channel: the client's offer. All that follows is encrypted.
local function show_channel(packet, add)
   local stream, offered = tcp_stream(), tls_alpn()
   local is_hello = has({ tls_handshake() }, CLIENT_HELLO)
   if not stream then
      return
   end
   local source, destination = tcp_source().value, tcp_destination().value
   if is_hello and offered and offered.value == CHANNEL_ALPN then
      servers[stream.value] = destination
   end
   local server = servers[stream.value] or CHANNEL_PORT
   if source ~= server and destination ~= server then
      return
   end
   local channel = add(shown.channel)
   channel:add(shown.is_from_client, destination == server):set_generated()
   if not is_hello then
      return
   end
   if offered then
      channel:add(shown.alpn, offered.range, offered.value)
   end
   local mistakes = {}
   if not has({ tls_alpn() }, CHANNEL_ALPN) then
      table.insert(mistakes, "the protocol " .. CHANNEL_ALPN)
   end
   if not has({ tls_version() }, TLS_1_3) then
      table.insert(mistakes, "TLS 1.3")
   end
   if not has({ tls_key_form() }, RAW_PUBLIC_KEY) then
      table.insert(mistakes, "raw public keys")
   end
   if mistakes[1] then
      channel:add_proto_expert_info(refused, "A server refuses this client, which does not offer " .. table.concat(mistakes, ", "))
      packet.cols.info:append(" [no Usher control channel]")
   else
      packet.cols.info:append(string.format(" [Usher control channel %s]", CHANNEL_ALPN))
   end
end

function usher.dissector(_, packet, root)
   -- Most packets have nothing of Usher's, and get no tree.
   local tree
   local function add(...)
      tree = tree or root:add(usher)
      return tree:add(...)
   end
   -- A packet of ICMP or of a tunnel has another packet's header inside.
   for _, options in ipairs({ tcp_options() }) do
      show_tokens(options, packet, add)
   end
   if tls_record() then
      show_channel(packet, add)
   end
end

register_postdissector(usher)
