#!/usr/bin/env bash
# The release binary as a user meets it: start, append, kill -9, start again, read, stop. One argument: the binary.
set -euo pipefail

flexlog=$1
folder=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill -9 "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT

# Starts the server and waits for its `ready ADDR`.
start() {
    rm -f "$folder/says"
    mkfifo "$folder/says"
    "$flexlog" up --dir "$folder/data" --listen 127.0.0.1:0 >"$folder/says" &
    server=$!
    exec 3<"$folder/says"
    read -r word address <&3
    [[ $word == ready ]]
    export FLEXLOG_CLUSTER=$address
}

seq 1 10000 >"$folder/lines"
start
"$flexlog" append drive --file "$folder/lines" >"$folder/numbers"
[[ $(wc -l <"$folder/numbers") == 10000 ]]
kill -9 "$server"
wait "$server" 2>/dev/null || true
exec 3<&-

start
"$flexlog" read drive --from "$(head -n 1 "$folder/numbers")" | cmp - "$folder/lines"
"$flexlog" trim drive "$(sed -n 5000p "$folder/numbers")" >/dev/null
[[ $("$flexlog" tail drive --last 1) == 10000 ]]
code=0
"$flexlog" read drive "$(head -n 1 "$folder/numbers")" 2>"$folder/error" || code=$?
[[ $code == 1 ]] && grep -q Trimmed "$folder/error"
"$flexlog" status --json | grep -q '"state":"serving"'
kill -TERM "$server"
wait "$server"
server=
echo "drive: 10000 lines came back after kill -9; trim, tail, status and a clean stop"
