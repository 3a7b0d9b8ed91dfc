#!/bin/sh
# A client of the metabroker made of mosquitto_pub, mosquitto_sub and files of msgpack: sh metabroker.sh HOST PORT REMOTE
# It publishes one message to the topic "demo/temperature" of the remote broker.
set -eu
host=$1 port=$2 remote=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# A text of up to 255 bytes in msgpack: 0xd9, its length, the text.
text() { printf "\\331\\$(printf %03o "${#1}")%s" "$1"; }

# Connect: a map of two pairs, {"client": "demo", "remote": REMOTE}.
{ printf '\202'; text client; text demo; text remote; text "$remote"; } > "$dir/connect"
mosquitto_sub -h "$host" -p "$port" -q 1 -t metabroker/response/demo/connack -C 1 -W 20 -N > "$dir/connack" &
answer=$!
# The request goes again until the subscription is there and the answer comes; each opens a session, the first answer counts.
while kill -0 $answer 2> /dev/null; do
    mosquitto_pub -h "$host" -p "$port" -q 1 -t metabroker/request/connect -f "$dir/connect"
    sleep 1
done
wait $answer
session=$(tr -c 'a-f0-9' '\n' < "$dir/connack" | grep -E '^[a-f0-9]{32}$')

# Publish: {"message": 1, "topic": "demo/temperature", "payload": "21.5", "qos": 1}, 0x84 is a map of four pairs.
{ printf '\204'; text message; printf '\001'; text topic; text demo/temperature; text payload; text 21.5; text qos; printf '\001'; } > "$dir/publish"
mosquitto_sub -h "$host" -p "$port" -q 1 -t "metabroker/response/$session/puback" -C 1 -W 20 -N > "$dir/puback" &
answer=$!
# The same identifier again is not published again: it is answered again.
while kill -0 $answer 2> /dev/null; do
    mosquitto_pub -h "$host" -p "$port" -q 1 -t "metabroker/request/$session/publish" -f "$dir/publish"
    sleep 1
done
wait $answer
# {"message": 1, "code": 0}: the last byte is the code.
test "$(tail -c 1 "$dir/puback" | od -An -tu1 | tr -d ' ')" = 0

mosquitto_pub -h "$host" -p "$port" -q 1 -t "metabroker/request/$session/disconnect" -n
echo "published through session $session"
