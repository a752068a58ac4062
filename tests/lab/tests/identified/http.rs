//! A header of each HTTP request.

use serde_json::Value;
use usher_lab::{Mail, PATIENCE, Running, eventually};

use crate::reading::{Outcome, is_cut};
use crate::{SOCKET, start};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Answers with the request as it has arrived, as JSON.
pub const SERVER: &str = r#"
import http.server, json, os, socketserver, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def address_string(self):
        return "local"
    def do_GET(self):
        length = int(self.headers.get("content-length", "0"))
        body = self.rfile.read(length)
        if self.headers.get("transfer-encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        answer = {
            "line": self.requestline, "headers": self.headers.items(), "length": len(body),
            "connection": self.connection.fileno(), "pid": os.getpid(),
        }
        text = json.dumps(answer).encode() + b"\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    do_POST = do_GET
class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64
if os.path.exists(sys.argv[1]):
    os.unlink(sys.argv[1])
Server(sys.argv[1], Handler).serve_forever()
"#;

const NGINX: &str = r#"
daemon off;
pid /run/app/nginx.pid;
error_log stderr;
events {}
http {
    access_log off;
    client_body_temp_path /var/lib/app/body;
    proxy_temp_path /var/lib/app/proxy;
    fastcgi_temp_path /var/lib/app/fastcgi;
    uwsgi_temp_path /var/lib/app/uwsgi;
    scgi_temp_path /var/lib/app/scgi;
    server {
        listen unix:/run/app/usher.sock VERSION;
        location / {
            default_type text/plain;
            return 200 "hello $http_x_remote_user from $http_x_forwarded_for by $server_protocol\n";
        }
        location /files { root /var/lib/app; client_max_body_size 20m; dav_methods PUT; }
    }
}
"#;

/// Greets the user, and answers each message.
const WEBSOCKETS: &str = r#"
import asyncio, sys, websockets
async def serve(socket):
    request = getattr(socket, "request", None)
    headers = request.headers if request else socket.request_headers
    user = headers["X-Remote-User"]
    await socket.send(f"hello {user}")
    async for message in socket:
        await socket.send(f"{user} {message}")
async def main():
    unix_serve = getattr(websockets, "unix_serve", None) or websockets.asyncio.server.unix_serve
    async with unix_serve(serve, sys.argv[1]):
        await asyncio.Future()
asyncio.run(main())
"#;

/// Sends each line of its input, and prints what it gets.
const WEBSOCKET_CLIENT: &str = r#"
import asyncio, sys, websockets
async def main():
    async with websockets.connect("ws://127.0.1.1:7200/") as socket:
        print(await socket.recv(), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            await socket.send(line.strip())
            print(await socket.recv(), flush=True)
asyncio.run(main())
"#;

fn topology() -> Result<Mail> {
    let mail = crate::topology(&format!("http \"{SOCKET}\""))?;
    mail.mailhost.write("/var/lib/app/server", SERVER)?;
    Ok(mail)
}

fn python(mail: &Mail) -> Result<Running> {
    start(mail, &["python3", "/var/lib/app/server", SOCKET])
}

/// What the server got from a request of the user's.
pub fn get(mail: &Mail, user: &str, words: &[&str]) -> Result<Value> {
    let base = ["curl", "-sS", "http://127.0.1.1:7200/"];
    let curl = mail.laptop.run_as(user, base.iter().chain(words))?;
    Ok(serde_json::from_str(&curl.stdout)?)
}

/// The values of the headers whose name, without what is no letter, is the one of the user's header.
pub fn claims(request: &Value) -> Vec<String> {
    let headers = request["headers"].as_array().into_iter().flatten();
    let name = |header: &Value| {
        let name = header[0].as_str().unwrap_or_default().to_lowercase();
        name.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-")
    };
    headers
        .filter(|header| name(header) == "x-remote-user")
        .map(|header| header[1].as_str().unwrap_or_default().to_owned())
        .collect()
}

pub fn header<'r>(request: &'r Value, name: &str) -> Option<&'r str> {
    let mut headers = request["headers"].as_array()?.iter();
    let found = headers.find(|header| {
        header[0]
            .as_str()
            .is_some_and(|own| own.eq_ignore_ascii_case(name))
    })?;
    found[1].as_str()
}

// Threat model: A180
#[test]
fn a_forged_header_changes_nothing() -> Outcome {
    let mail = topology()?;
    let _server = python(&mail)?;
    let address = mail.laptop.ipv4().to_string();
    for user in ["alice", "bob"] {
        let request = get(&mail, user, &[])?;
        assert_eq!(claims(&request), [user], "{request}");
        assert_eq!(header(&request, "X-Forwarded-For"), Some(address.as_str()));
        assert_eq!(header(&request, "Host"), Some("127.0.1.1:7200"));
    }
    for forged in [
        "X-Remote-User: bob",
        "x_remote_user: bob",
        "X.Remote-User: bob",
        "Connection: X-Remote-User",
        "X-Forwarded-For: 10.9.9.9",
        "X_Forwarded_For: 10.9.9.9",
    ] {
        let request = get(&mail, "alice", &["-H", forged])?;
        assert_eq!(claims(&request), ["alice"], "{forged}: {request}");
        assert_eq!(header(&request, "X-Forwarded-For"), Some(address.as_str()));
        assert!(!request.to_string().contains("10.9.9.9"), "{request}");
    }
    let carol = mail.laptop.command(["usher", "connect", "mailhost:app"]);
    let carol = carol.user("carol").input("GET / HTTP/1.0\r\n\r\n").run()?;
    assert!(carol.stderr.contains("refused: "), "{carol:?}");
    Ok(())
}

// Threat model: A182
#[test]
fn a_page_of_another_site_changes_nothing_as_the_user() -> Outcome {
    let mail = topology()?;
    let _server = python(&mail)?;
    let status = |words: &[&str]| -> Result<String> {
        let base = [
            "curl",
            "-sS",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code}",
            "http://127.0.1.1:7200/",
        ];
        let curl = mail.laptop.run_as("alice", base.iter().chain(words))?;
        Ok(curl.stdout)
    };
    let post = ["-d", "x"];
    let websocket = ["-H", "Connection: Upgrade", "-H", "Upgrade: websocket"];
    for (origin, answer) in [
        ("Origin: http://127.0.1.1:7200", "200"),
        ("Sec-Fetch-Site: same-origin", "200"),
        ("Origin: http://other.example", "403"),
        ("Sec-Fetch-Site: cross-site", "403"),
    ] {
        for request in [&post[..], &websocket] {
            let with = [request, &["-H", origin]].concat();
            assert_eq!(status(&with)?, answer, "{with:?}");
        }
        // A link to it may be followed.
        assert_eq!(status(&["-H", origin])?, "200", "{origin}");
    }
    assert_eq!(status(&post)?, "200");
    Ok(())
}

// Threat model: A180
#[test]
fn a_request_passes_as_one_request() -> Outcome {
    let mail = topology()?;
    let _server = python(&mail)?;
    let answers = |text: &str, count: usize| -> Result<Vec<Value>> {
        let connect = mail.laptop.command(["usher", "connect", "mailhost:app"]);
        let mut client = connect.user("alice").spawn()?;
        client.write(text)?;
        let answer = |_| -> Result<Value> {
            let said = client.read_past("}\n", PATIENCE)?;
            Ok(serde_json::from_str(
                said.lines().last().ok_or("no answer")?,
            )?)
        };
        let answers = (0..count).map(answer).collect::<Result<Vec<_>>>()?;
        // The last request asks for the end.
        is_cut(&mut client)?;
        Ok(answers)
    };
    // Two on one connection, both of alice.
    let one = "GET /1 HTTP/1.1\r\nHost: app\r\n\r\n";
    let two = "GET /2 HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n";
    let both = answers(&format!("{one}{two}"), 2)?;
    for request in &both {
        assert_eq!(claims(request), ["alice"]);
    }
    // The body is what the chunks are, whatever else is said of its length.
    let chunked = "POST /3 HTTP/1.1\r\nHost: app\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
        5\r\nhello\r\n0\r\nX-Remote-User: bob\r\n\r\n";
    let said = answers(chunked, 1)?;
    assert_eq!(said[0]["length"], 5, "{said:?}");
    assert_eq!(header(&said[0], "Content-Length"), None);
    assert_eq!(claims(&said[0]), ["alice"]);
    // Also of a GET, of which a body is unusual.
    let said = answers(&chunked.replace("POST", "GET"), 1)?;
    assert_eq!(said[0]["length"], 5, "{said:?}");
    let unlisted = "POST /3 HTTP/1.1\r\nHost: app\r\nConnection: close, host, content-length\r\n\
        Content-Length: 5\r\n\r\nhello";
    let said = answers(unlisted, 1)?;
    assert_eq!(said[0]["length"], 5, "{said:?}");
    assert_eq!(header(&said[0], "Host"), Some("app"));
    // No change to a protocol that nobody reads.
    let upgrade = "GET /4 HTTP/1.1\r\nHost: app\r\nConnection: Upgrade, HTTP2-Settings, close\r\n\
        Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n";
    let said = answers(upgrade, 1)?;
    for name in ["Upgrade", "HTTP2-Settings"] {
        assert_eq!(header(&said[0], name), None, "{said:?}");
    }
    assert_eq!(header(&said[0], "Connection"), Some("close"));
    let absolute = "GET http://other:1/5?x HTTP/1.1\r\nHost: app\r\nConnection: close\r\n\r\n";
    let said = answers(absolute, 1)?;
    assert_eq!(said[0]["line"], "GET /5?x HTTP/1.1");
    assert_eq!(header(&said[0], "Host"), Some("other:1"));
    for (request, status) in [
        (
            "CONNECT other:1 HTTP/1.1\r\nHost: other:1\r\n\r\n",
            "405 Method Not Allowed",
        ),
        ("GET / HTTP/1.1\r\n\r\n", "400 Bad Request"),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
            "400 Bad Request",
        ),
    ] {
        let connect = mail.laptop.command(["usher", "connect", "mailhost:app"]);
        let mut client = connect.user("alice").spawn()?;
        client.write(request)?;
        let said = client.read_past("\n", PATIENCE)?;
        assert_eq!(said, format!("HTTP/1.1 {status}\r\n"));
    }
    Ok(())
}

#[test]
fn nginx_serves_both_versions_and_large_bodies() -> Outcome {
    let mail = topology()?;
    let address = mail.laptop.ipv4();
    let config = "/var/lib/app/nginx.conf";
    let curl = |user: &str, words: &[&str]| {
        let base = ["curl", "-sS", "http://127.0.1.1:7200/"];
        mail.laptop.run_as(user, base.iter().chain(words))
    };
    let greets = |option: &str, protocol: &str| -> Outcome {
        for user in ["alice", "bob"] {
            let forged = ["-H", "X-Remote-User: carol", option];
            let said = curl(user, &forged)?.stdout;
            let own = format!("hello {user} from {address} by {protocol}\n");
            assert_eq!(said, own);
        }
        Ok(())
    };
    let command = ["/usr/sbin/nginx", "-e", "stderr", "-c", config];
    mail.mailhost
        .write(config, NGINX.replace("VERSION", "http2"))?;
    let mut nginx = start(&mail, &command)?;
    let service = crate::service(&format!("http2 \"{SOCKET}\""));
    mail.mailhost
        .write("/etc/usher/policy.d/app.policy", service)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    greets("--http2-prior-knowledge", "HTTP/2.0")?;
    // The policy says which version, and not the client.
    let other = curl("alice", &["--http1.1"]);
    assert!(other.is_err(), "{other:?}");
    nginx.end()?;
    mail.mailhost.run(["rm", "-f", SOCKET])?;
    let without = curl("alice", &["--http2-prior-knowledge"]);
    assert!(without.is_err(), "{without:?}");

    mail.mailhost.write(config, NGINX.replace("VERSION", ""))?;
    let _nginx = start(&mail, &command)?;
    let service = crate::service(&format!("http \"{SOCKET}\""));
    mail.mailhost
        .write("/etc/usher/policy.d/app.policy", service)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    greets("--http1.1", "HTTP/1.1")?;
    let other = curl("alice", &["--http2-prior-knowledge"]);
    assert!(other.is_err(), "{other:?}");
    mail.mailhost
        .run(["install", "-d", "-o", "app", "/var/lib/app/files"])?;
    // nginx lets everybody use its socket: the folder keeps others out.
    let doctor = || {
        let doctor = mail.mailhost.command(["usher", "doctor"]).run();
        doctor.map(|said| said.stdout)
    };
    assert!(!doctor()?.contains("every local user reaches"));
    mail.mailhost.run(["chmod", "755", "/run/app"])?;
    let warned = doctor()?;
    let warning = format!("app: every local user reaches {SOCKET} and may claim to be anybody");
    assert!(warned.contains(&warning), "{warned}");
    let script = "head -c 9000000 /dev/urandom >/tmp/sent-$USER && \
        curl -sSf -T /tmp/sent-$USER http://127.0.1.1:7200/files/$USER && \
        curl -sSf -o /tmp/got-$USER http://127.0.1.1:7200/files/$USER && \
        cmp /tmp/sent-$USER /tmp/got-$USER";
    for user in ["alice", "bob"] {
        let shell = mail.laptop.command(["sh", "-c", script]).user(user);
        let same = shell.environment("USER", user).run()?;
        assert!(same.status.success(), "{same:?}");
    }
    Ok(())
}

#[test]
fn a_websocket_passes_and_a_revocation_cuts_one_users() -> Outcome {
    let mail = topology()?;
    mail.mailhost.write("/var/lib/app/websockets", WEBSOCKETS)?;
    mail.laptop.write("/run/client", WEBSOCKET_CLIENT)?;
    let _server = start(&mail, &["python3", "/var/lib/app/websockets", SOCKET])?;
    let open = |user: &str| -> Result<Running> {
        let mut socket = mail
            .laptop
            .command(["python3", "/run/client"])
            .user(user)
            .spawn()?;
        let greeting = socket.read_past("\n", PATIENCE)?;
        assert_eq!(greeting, format!("hello {user}\n"));
        Ok(socket)
    };
    let lives = |socket: &mut Running, user: &str| -> Outcome {
        socket.write("ping\n")?;
        assert_eq!(socket.read_past("\n", PATIENCE)?, format!("{user} ping\n"));
        Ok(())
    };
    let (mut alice, mut bob) = (open("alice")?, open("bob")?);
    lives(&mut alice, "alice")?;
    lives(&mut bob, "bob")?;
    mail.mailhost.run(["usher", "user", "disable", "alice"])?;
    // The client reads its input: a line makes it see the end.
    alice.write("ping\n")?;
    is_cut(&mut alice)?;
    lives(&mut bob, "bob")
}

#[test]
fn a_server_that_is_restarted_between_two_requests_is_found_again() -> Outcome {
    let mail = topology()?;
    let mut server = python(&mail)?;
    let mut client = mail
        .laptop
        .command(["usher", "connect", "mailhost:app"])
        .user("alice")
        .spawn()?;
    let mut ask = |path: &str| -> Result<String> {
        client.write(format!("GET {path} HTTP/1.1\r\nHost: app\r\n\r\n"))?;
        Ok(client.read_past("}\n", PATIENCE)?)
    };
    let first = ask("/1")?;
    assert!(first.contains("\"GET /1 HTTP/1.1\""), "{first}");
    server.end()?;
    let _server = python(&mail)?;
    let second = ask("/2")?;
    assert!(second.contains("\"GET /2 HTTP/1.1\""), "{second}");
    Ok(())
}

/// Opens connections of HTTP/2, and prints how many are answered.
const MANY: &str = r#"
import socket, sys
connections = []
for _ in range(int(sys.argv[1])):
    connection = socket.create_connection(("127.0.1.1", 7200), timeout=60)
    connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
    connections.append(connection)
answered = 0
for connection in connections:
    try:
        answered += len(connection.recv(1)) == 1
    except ConnectionResetError:
        pass
print(answered, flush=True)
sys.stdin.readline()
"#;

#[test]
fn a_user_has_a_limit_of_connections_and_others_are_served() -> Outcome {
    let mail = crate::topology(&format!("http2 \"{SOCKET}\""))?;
    mail.mailhost.write("/var/lib/app/server", SERVER)?;
    let _server = python(&mail)?;
    mail.laptop.write("/run/many", MANY)?;
    let open = |user: &str, count: &str, answered: &str| -> Result<Running> {
        let many = ["python3", "/run/many", count];
        let mut many = mail.laptop.command(many).user(user).spawn()?;
        assert_eq!(many.read_past("\n", PATIENCE)?, format!("{answered}\n"));
        Ok(many)
    };
    let mut first = open("alice", "130", "128")?;
    let _bob = open("bob", "2", "2")?;
    first.end()?;
    eventually("the places of former connections are free", || {
        Ok(open("alice", "1", "1").is_ok())
    })
}

#[test]
fn a_changed_statement_takes_effect_at_once() -> Outcome {
    let mail = topology()?;
    let _server = python(&mail)?;
    let mut former = mail
        .laptop
        .command(["usher", "connect", "mailhost:app"])
        .user("alice")
        .spawn()?;
    former.write("GET /1 HTTP/1.1\r\nHost: app\r\n\r\n")?;
    former.read_past("}\n", PATIENCE)?;
    let service = crate::service(&format!("http \"{SOCKET}\" header Remote-User"));
    mail.mailhost
        .write("/etc/usher/policy.d/app.policy", service)?;
    mail.mailhost.run(["usher", "policy", "apply"])?;
    is_cut(&mut former)?;
    eventually("the new header is in force", || {
        let request = get(&mail, "alice", &[]);
        Ok(request.is_ok_and(|request| header(&request, "Remote-User") == Some("alice")))
    })
}

#[test]
fn without_a_server_the_client_is_told() -> Outcome {
    let mail = topology()?;
    let curl = ["curl", "-sS", "-i", "http://127.0.1.1:7200/"];
    let told = mail.laptop.run_as("alice", curl)?.stdout;
    assert!(told.starts_with("HTTP/1.1 502 "), "{told}");
    let doctor = mail.mailhost.command(["usher", "doctor"]).run()?.stdout;
    let missing = format!("app: there is no {SOCKET}; start the server, or");
    assert!(doctor.contains(&missing), "{doctor}");
    assert!(
        told.contains("the service's server cannot be reached"),
        "{told}"
    );
    let _server = python(&mail)?;
    let request = get(&mail, "alice", &[])?;
    assert_eq!(claims(&request), ["alice"]);
    Ok(())
}

/// Radicale believes the header of whoever reaches it.
#[test]
fn radicale_gives_each_user_her_own_calendars() -> Outcome {
    let policy = include_str!("../../../../examples/identify/calendars.policy");
    let policy = policy
        .replace("account radicale", "account app")
        .replace("staff", "mail")
        .replace("/run/radicale/", "/run/app/");
    let mail = crate::topology_with(&policy, &crate::client("calendars", 5232))?;
    let config = include_str!("../../../../examples/identify/radicale.conf");
    let config = config.replace("/var/lib/radicale", "/var/lib/app");
    mail.mailhost.write("/var/lib/app/radicale.conf", config)?;
    let bind = format!("unix:{SOCKET}");
    let radicale = [
        "gunicorn",
        "--bind",
        &bind,
        "--worker-class",
        "gthread",
        "--threads",
        "64",
        "--env",
        "RADICALE_CONFIG=/var/lib/app/radicale.conf",
        "radicale",
    ];
    let _radicale = start(&mail, &radicale)?;
    let status = |user: &str, words: &[&str]| -> Result<String> {
        let base = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}"];
        let curl = mail.laptop.run_as(user, base.iter().chain(words))?;
        Ok(curl.stdout)
    };
    let calendar = "http://127.0.1.1:5232/alice/work/";
    let event = "http://127.0.1.1:5232/alice/work/1.ics";
    let text = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nBEGIN:VEVENT\r\nUID:1\r\n\
        DTSTAMP:20260101T000000Z\r\nDTSTART:20260101T100000Z\r\nSUMMARY:tea\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n";
    mail.laptop.write("/run/event.ics", text)?;
    let calendar_type = "Content-Type: text/calendar";
    let put = ["-T", "/run/event.ics", "-H", calendar_type, event];
    eventually("radicale answers", || {
        Ok(status("alice", &[calendar])? != "502")
    })?;
    assert_eq!(status("alice", &["-X", "MKCALENDAR", calendar])?, "201");
    assert_eq!(status("alice", &put)?, "201");
    assert_eq!(status("alice", &[event])?, "200");
    assert_eq!(status("bob", &[event])?, "403");
    assert_eq!(
        status("bob", &["-H", "X-Remote-User: alice", event])?,
        "403"
    );
    assert_eq!(status("bob", &put)?, "403");
    Ok(())
}
