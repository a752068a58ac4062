#!/bin/bash
# With which mode two servers make the local sockets at which they listen.
#
# A server that believes a header of whoever reaches its socket must keep others from it, and a unit's UMask=0077
# looks like the way.
#
# Guess before the run: by the umask, as bind(2) does: mode 0700 under umask 077.
# Seen with nginx 1.22.1 and gunicorn 20.1.0: not so. nginx sets mode 0666 itself. gunicorn binds under a umask of
# its own (`umask`, by default 0), so mode 0777, and 0700 only with `--umask 077`. The folder has to keep others out.
#
# Needs apt and Debian 12, and no privilege. Exit status 0: as seen.
set -euo pipefail

PACKAGES=(nginx=1.22.1-9+deb12u11 python3-gunicorn=20.1.0-6+deb12u1)

folder=$(mktemp -d)
cleanup() {
    local pids
    pids=$(jobs -p)
    # They may have ended by themselves.
    [ -z "$pids" ] || kill $pids 2>/dev/null || true
    rm -rf "$folder"
}
trap cleanup EXIT
cd "$folder"
apt-get download --quiet --quiet "${PACKAGES[@]}" 2>/dev/null ||
    { echo "cannot download ${PACKAGES[*]}" >&2; exit 1; }
for package in *.deb; do
    dpkg-deb --extract "$package" files
done
umask 077

cat >nginx.conf <<CONF
daemon off;
master_process off;
pid $folder/nginx.pid;
events {}
http {
    access_log off;
    client_body_temp_path $folder/body;
    proxy_temp_path $folder/proxy;
    fastcgi_temp_path $folder/fastcgi;
    uwsgi_temp_path $folder/uwsgi;
    scgi_temp_path $folder/scgi;
    server { listen unix:$folder/nginx.socket; }
}
CONF
files/usr/sbin/nginx -e "$folder/nginx.log" -c "$folder/nginx.conf" &
cat >application.py <<'PYTHON'
def application(environ, start_response):
    start_response("204 No Content", [])
    return []
PYTHON
serve() {
    PYTHONPATH=$folder/files/usr/lib/python3/dist-packages /usr/bin/python3 -m gunicorn --log-level critical \
        --bind "unix:$folder/$1.socket" "${@:2}" application &
}
serve gunicorn
serve gunicorn-umask --umask 077

for name in nginx gunicorn gunicorn-umask; do
    for _ in $(seq 100); do
        [ -S "$name.socket" ] && break
        sleep 0.1
    done
done
# gunicorn sets its owner after it has bound it.
sleep 1
modes=$(stat --format=%a nginx.socket gunicorn.socket gunicorn-umask.socket | tr '\n' ' ')
echo "modes under umask 077: nginx, gunicorn, gunicorn --umask 077: $modes"
[ "$modes" = "666 777 700 " ] || { echo "the servers make their sockets otherwise" >&2; exit 1; }
echo "as seen: neither goes by the umask with which it was started"
