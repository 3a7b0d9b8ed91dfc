#!/bin/sh
# A client of the metabroker made of mosquitto's tools and printf: sh metabroker.sh HOST PORT REMOTE
# It publishes two messages to topics of the remote broker: "demo/temperature", which is answered, and "demo/rain", which is not.
set -eu
host=$1 port=$2 remote=$3

# A text of up to 255 bytes in msgpack: 0xd9, its length, the text.
text() { printf "\\331\\$(printf %03o "${#1}")%s" "$1"; }
# Subscribe to the answer, publish a request, print the answer. "demo" is our client identifier, at the broker and in requests.
# (mosquitto_rr 2.0.11 sends nothing of what stands in a file: the body is an argument, which must not have zero bytes.)
ask() { mosquitto_rr -i demo -h "$host" -p "$port" -q 1 -t "metabroker/request/$1" -m "$2" -e "metabroker/response/$3" -W 20 -N; }

# Connect: a map of two pairs, {"client": "demo", "remote": REMOTE}. The answer has the session's identifier.
connect=$(printf '\202'; text client; text demo; text remote; text "$remote")
connack=$(ask demo/connect "$connect" demo/connack | tr -c '[:print:]' '\n')
session=$(echo "$connack" | grep -oE 'demo/[a-f0-9]{32}') || { echo "no session:" $connack >&2; exit 1; }

# Publish: {"message": 1, "topic": "demo/temperature", "payload": "21.5", "qos": 1}, 0x84 is a map of four pairs.
publish=$(printf '\204'; text message; printf '\001'; text topic; text demo/temperature; text payload; text 21.5; text qos; printf '\001')
# {"message": 1, "code": 0}: the byte behind the letters of "code"; a "reason" may follow.
code=$(ask "$session/publish" "$publish" "$session/puback" | od -An -v -tu1 | tr -s ' \n' ' ' | grep -o '99 111 100 101 [0-9]*' | head -n 1 | cut -d ' ' -f 5)
test "$code" = 0 || { echo "not published, code $code" >&2; exit 1; }

# At QoS 0 no "message" is needed, and nothing is answered: {"topic": "demo/rain", "payload": "3 mm"}.
quiet=$(printf '\202'; text topic; text demo/rain; text payload; text '3 mm')
mosquitto_pub -i demo -h "$host" -p "$port" -t "metabroker/request/$session/publish" -m "$quiet"

mosquitto_pub -i demo -h "$host" -p "$port" -q 1 -t "metabroker/request/$session/disconnect" -n
echo "published through session $session"
