//! A reverse proxy that tells the server who the user is in a header of each request.
//!
//! A request of one user is never on a connection to the server that another user's request was on: over
//! HTTP/1.1 each has a new one, over HTTP/2 each client's connection has its own. What the client says in that
//! header, or in one that a server may take for it, is removed, and so is what concerns only this connection
//! (RFC 9110, section 7.6.1). Of protocols that a connection can change to, only WebSocket passes: after any
//! other change the client could send requests that nobody reads here. The policy says which version is spoken,
//! not the client: a server for the one may misread the other.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::combinators::MapFrame;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::uri::Authority;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version, client, server};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::sleep;
use usher_daemon::quota::Taken;

use crate::{Server, Unserved, connect};

/// How long a client may take for the headers of a request, and be silent between two.
const SILENCE: Duration = Duration::from_secs(60);
/// Limit of what waits of one connection, each way, in bytes; HTTP/1.1.
const BUFFER: usize = 64 * 1024;
/// Limit of a request's headers: how many (HTTP/1.1), and their bytes (HTTP/2).
const HEADERS: usize = 256;
const HEADER_BYTES: u32 = 64 * 1024;
/// Limit of requests of one connection at a time; HTTP/2.
const REQUESTS: u32 = 100;
/// Limits of what waits of one connection's bodies, each way, and of one body's, in bytes; HTTP/2.
const WINDOW: u32 = 256 * 1024;
const BODY: u32 = 64 * 1024;
const UNSENT: usize = 16 * 1024;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Headers in which proxies tell servers who the user is, or where the client is. A server that reads another
/// one than the policy says would believe the client.
const CLAIMS: [&str; 15] = [
    "client-ip",
    "forwarded",
    "remote-email",
    "remote-groups",
    "remote-name",
    "remote-user",
    "true-client-ip",
    "x-authenticated-user",
    "x-authenticated-userid",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-proxy-user",
    "x-real-ip",
    "x-user",
    "x-ssl-client-s-dn",
];
const CLAIMED_GROUPS: [&str; 5] = [
    "x-auth-request-",
    "x-authentik-",
    "x-forwarded-",
    "x-remote-",
    "x-webauth-",
];

/// A body on its way, of which each part is looked at.
type Passed = MapFrame<Incoming, Box<dyn FnMut(Frame<Bytes>) -> Frame<Bytes> + Send>>;
/// A body for the client: the server's, or a sentence.
type Answer = Either<Passed, Full<Bytes>>;

/// Who the user of a connection is, and how its server is told.
pub struct User {
    pub header: HeaderName,
    pub name: HeaderValue,
    pub address: IpAddr,
}

/// A client's connection.
struct Client {
    user: User,
    server: Arc<Server>,
    /// Requests whose answers are not whole yet, and all that there have been; HTTP/2.
    open: AtomicUsize,
    begun: AtomicUsize,
    /// Its place among the user's connections, also when it has become a WebSocket.
    _permit: Taken<u32>,
}

/// A request that is counted as open until its answer is whole.
struct Counted(Arc<Client>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Client {
    fn new(user: User, server: Arc<Server>, permit: Taken<u32>) -> Arc<Self> {
        Arc::new(Self {
            user,
            server,
            open: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            _permit: permit,
        })
    }

    fn count(self: &Arc<Self>) -> Counted {
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(self))
    }
}

/// Serves a client's connection over HTTP/1.1 until it ends.
///
/// # Errors
/// When the client breaks it off, or does not speak HTTP/1.
pub async fn serve(
    connection: TcpStream,
    user: User,
    server: Arc<Server>,
    permit: Taken<u32>,
) -> io::Result<()> {
    let client = Client::new(user, server, permit);
    let service = service_fn(move |request| {
        let client = Arc::clone(&client);
        async move { Ok::<_, Infallible>(client.answer(request).await) }
    });
    server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE)
        .max_buf_size(BUFFER)
        .max_headers(HEADERS)
        .serve_connection(TokioIo::new(connection), service)
        .with_upgrades()
        .await
        .map_err(io::Error::other)
}

/// Serves a client's connection over HTTP/2, on a connection to the server, until one of them ends or the
/// client is silent.
///
/// # Errors
/// When one of them breaks off, or does not speak HTTP/2.
pub async fn serve_http2(
    connection: TcpStream,
    remote: UnixStream,
    user: User,
    server: Arc<Server>,
    permit: Taken<u32>,
) -> io::Result<()> {
    let (sender, to_server) = client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(BODY)
        .max_send_buf_size(UNSENT)
        .handshake(TokioIo::new(remote))
        .await
        .map_err(io::Error::other)?;
    let client = Client::new(user, server, permit);
    let counting = Arc::clone(&client);
    let service = service_fn(move |request| {
        let (counted, mut sender) = (counting.count(), sender.clone());
        async move {
            if let Some(refusal) = refused(&request, false) {
                return Ok(refusal);
            }
            let request = match counted.0.prepare(request, false) {
                Ok(request) => request,
                Err(reason) => return Ok(refusal(StatusCode::BAD_REQUEST, reason)),
            };
            Ok::<_, Infallible>(match sender.send_request(request).await {
                Ok(response) => passed_on(response, Some(counted)),
                Err(error) => broken(&error),
            })
        }
    });
    let serving = server::conn::http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(REQUESTS)
        .max_header_list_size(HEADER_BYTES)
        .initial_connection_window_size(WINDOW)
        .initial_stream_window_size(BODY)
        .max_send_buf_size(UNSENT)
        .serve_connection(TokioIo::new(connection), service);
    let (mut serving, mut to_server, mut silence) =
        (pin!(serving), pin!(to_server), pin!(silence(&client)));
    let (mut server_ended, mut ending) = (false, false);
    loop {
        tokio::select! {
            served = &mut serving => return served.map_err(io::Error::other),
            // The client learns it, and connects again.
            ended = &mut to_server, if !server_ended => {
                server_ended = true;
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the server broke");
                }
                serving.as_mut().graceful_shutdown();
            }
            () = &mut silence => {
                if ending {
                    return Ok(());
                }
                ending = true;
                serving.as_mut().graceful_shutdown();
                silence.set(self::silence(&client));
            }
        }
    }
}

/// Waits until a client has been silent for [`SILENCE`]: no request is open, and none has begun.
async fn silence(client: &Client) {
    loop {
        let begun = client.begun.load(Ordering::Relaxed);
        sleep(SILENCE).await;
        if client.open.load(Ordering::Relaxed) == 0 && client.begun.load(Ordering::Relaxed) == begun
        {
            return;
        }
    }
}

impl Client {
    /// The answer to a request of HTTP/1: the server's, or why there is none.
    async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Response<Answer> {
        let websocket = is_websocket(&request);
        if let Some(refusal) = refused(&request, websocket) {
            return refusal;
        }
        let from_client = websocket.then(|| hyper::upgrade::on(&mut request));
        let request = match self.prepare(request, websocket) {
            Ok(request) => request,
            Err(reason) => return refusal(StatusCode::BAD_REQUEST, reason),
        };
        let remote = match connect(&self.server.socket).await {
            Ok(remote) => remote,
            Err(error) => return self.unreachable(&error),
        };
        let mut response = match send(remote, request).await {
            Ok(response) => response,
            Err(error) => return broken(&error),
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return passed_on(response, None);
        }
        let Some(from_client) = from_client else {
            let reason = "the service's server changes the protocol unasked";
            return refusal(StatusCode::BAD_GATEWAY, reason);
        };
        let from_server = hyper::upgrade::on(&mut response);
        let mut response = passed_on(response, None);
        set_websocket(response.headers_mut());
        tokio::spawn(async move {
            if let Err(error) = join(from_client, from_server).await {
                tracing::debug!(%error, "a WebSocket broke");
            }
            drop(self);
        });
        response
    }

    fn unreachable(&self, error: &Unserved) -> Response<Answer> {
        self.server.warnings.say(&self.user.address, error);
        let reason = "the service's server cannot be reached; the journal of its host says why";
        refusal(StatusCode::BAD_GATEWAY, reason)
    }

    /// The request as the server gets it.
    ///
    /// # Errors
    /// What is wrong with a request that has no unique meaning.
    fn prepare(
        &self,
        request: Request<Incoming>,
        websocket: bool,
    ) -> Result<Request<Passed>, &'static str> {
        let (mut head, body) = request.into_parts();
        let is_http2 = head.version == Version::HTTP_2;
        let headers = &mut head.headers;
        let is_chunked = headers.contains_key(header::TRANSFER_ENCODING);
        let takes_trailers = headers
            .get(header::TE)
            .is_some_and(|value| value == "trailers");
        remove_hop_by_hop(headers);
        for name in [header::EXPECT, HTTP2_SETTINGS] {
            headers.remove(name);
        }
        let header = self.user.header.clone();
        let address = HeaderValue::try_from(self.user.address.to_canonical().to_string());
        let address = address.map_err(|_| "the client has no address")?;
        remove_claims(headers, &header);
        headers.insert(X_FORWARDED_FOR, address);
        headers.insert(&header, self.user.name.clone());
        if is_http2 {
            set_authority(&mut head.uri, headers)?;
            if takes_trailers {
                headers.insert(header::TE, HeaderValue::from_static("trailers"));
            }
        } else {
            to_origin_form(&mut head.uri, headers, head.version)?;
            head.version = Version::HTTP_11;
            // hyper would take a request without a length for one without a body.
            if is_chunked {
                let chunked = HeaderValue::from_static("chunked");
                headers.remove(header::CONTENT_LENGTH);
                headers.insert(header::TRANSFER_ENCODING, chunked);
            }
            let close = HeaderValue::from_static("close");
            headers.insert(header::CONNECTION, close);
            if websocket {
                set_websocket(headers);
            }
        }
        let clean = Box::new(move |mut frame: Frame<Bytes>| {
            if let Some(trailers) = frame.trailers_mut() {
                remove_claims(trailers, &header);
            }
            frame
        });
        Ok(Request::from_parts(head, body.map_frame(clean)))
    }
}

/// Sends a request of HTTP/1 on a connection of its own.
async fn send(remote: UnixStream, request: Request<Passed>) -> hyper::Result<Response<Incoming>> {
    let mut builder = client::conn::http1::Builder::new();
    builder.max_buf_size(BUFFER).max_headers(HEADERS);
    let (mut sender, connection) = builder.handshake(TokioIo::new(remote)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to the server broke");
        }
    });
    sender.send_request(request).await
}

/// The server's answer as the client gets it.
fn passed_on(response: Response<Incoming>, counted: Option<Counted>) -> Response<Answer> {
    let (mut head, body) = response.into_parts();
    let is_chunked = head.headers.contains_key(header::TRANSFER_ENCODING);
    remove_hop_by_hop(&mut head.headers);
    if is_chunked {
        head.headers.remove(header::CONTENT_LENGTH);
    }
    // A server of HTTP/1.0 may stand behind it.
    if head.version == Version::HTTP_10 {
        head.version = Version::HTTP_11;
    }
    let passing = Box::new(move |frame| {
        let _open = &counted;
        frame
    });
    Response::from_parts(head, Either::Left(body.map_frame(passing)))
}

/// No answer: the server's doing, or that of a client which broke off its own request.
fn broken(error: &hyper::Error) -> Response<Answer> {
    tracing::debug!(%error, "a request has no answer");
    refusal(StatusCode::BAD_GATEWAY, "the service's server broke off")
}

/// Passes the bytes of a WebSocket on, both ways, until it ends.
async fn join(client: OnUpgrade, server: OnUpgrade) -> io::Result<()> {
    let (client, server) = tokio::try_join!(client, server).map_err(io::Error::other)?;
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

/// The answer to a request that is not passed on.
fn refused(request: &Request<Incoming>, websocket: bool) -> Option<Response<Answer>> {
    if request.method() == Method::CONNECT {
        let reason = "CONNECT is not passed on: this is no proxy";
        return Some(refusal(StatusCode::METHOD_NOT_ALLOWED, reason));
    }
    let changes_nothing = [Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    if (websocket || !changes_nothing) && is_of_another_site(request.uri(), request.headers()) {
        let reason = "a page of another site has sent this, and does not act for the user here";
        return Some(refusal(StatusCode::FORBIDDEN, reason));
    }
    None
}

/// Whether a page of another site has a browser send a request, which would be the user's: by `Sec-Fetch-Site`
/// (W3C Fetch Metadata), from browsers without it by `Origin` (RFC 6454), which is not this server's host then.
/// Programs that are no browsers send neither.
fn is_of_another_site(uri: &Uri, headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get(SEC_FETCH_SITE) {
        return site != "same-origin" && site != "none";
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return false;
    };
    let authority = uri
        .authority()
        .map(|authority| authority.as_str().as_bytes());
    let host = authority.or_else(|| headers.get(header::HOST).map(HeaderValue::as_bytes));
    let after_scheme = origin.as_bytes().splitn(2, |&byte| byte == b'/').nth(1);
    let origin = after_scheme.and_then(|rest| rest.strip_prefix(b"/"));
    match (origin, host) {
        (Some(origin), Some(host)) => !origin.eq_ignore_ascii_case(host),
        _ => true,
    }
}

fn refusal(status: StatusCode, reason: &'static str) -> Response<Answer> {
    let text = Full::new(Bytes::from(format!("usher: {reason}\n")));
    let mut response = Response::new(Either::Right(text));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// Whether a request asks for a WebSocket (RFC 6455), and for nothing else.
fn is_websocket(request: &Request<Incoming>) -> bool {
    let mut asked = request.headers().get_all(header::UPGRADE).iter();
    let websocket = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"websocket");
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        && asked.next().is_some_and(websocket)
        && asked.next().is_none()
}

fn set_websocket(headers: &mut HeaderMap) {
    let (upgrade, websocket) = ("upgrade", "websocket");
    headers.insert(header::CONNECTION, HeaderValue::from_static(upgrade));
    headers.insert(header::UPGRADE, HeaderValue::from_static(websocket));
}

/// Removes what concerns only one of the two connections (RFC 9110, section 7.6.1). Nobody may have the body's
/// length or the host removed by naming them in `Connection`.
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let connection = headers.get_all(header::CONNECTION).iter();
    let listed: Vec<HeaderName> = connection
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| ![header::CONTENT_LENGTH, header::HOST].contains(name))
        .collect();
    let known = [
        header::CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        header::TE,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ];
    for name in listed.into_iter().chain(known) {
        headers.remove(name);
    }
}

/// Removes what only a proxy may say, and here the client has said it: who the user is, in `own` or in another
/// header that some server believes, and where the client is. Names that differ in what is no letter or digit are
/// the same: CGI and its successors make one variable of them (RFC 3875, section 4.1.18).
fn remove_claims(headers: &mut HeaderMap, own: &HeaderName) {
    let own = plain(own);
    let is_claim = |name: &HeaderName| {
        let name = plain(name);
        name == own
            || CLAIMS.contains(&name.as_str())
            || CLAIMED_GROUPS.iter().any(|group| name.starts_with(group))
    };
    let found: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_claim(name))
        .cloned()
        .collect();
    for name in found {
        headers.remove(name);
    }
}

/// A header's name with a hyphen for each character that is no letter or digit.
fn plain(name: &HeaderName) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() {
            letter
        } else {
            '-'
        }
    };
    name.as_str().chars().map(plain).collect()
}

/// Makes a request's target one for a server (RFC 9112, section 3.2.1): a host in it goes to the Host header, of
/// which there is exactly one afterwards.
fn to_origin_form(
    uri: &mut Uri,
    headers: &mut HeaderMap,
    version: Version,
) -> Result<(), &'static str> {
    if let Some(authority) = uri.authority() {
        headers.insert(header::HOST, host_of(authority)?);
        let path = uri.path_and_query().cloned();
        *uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), None) => Ok(()),
        (None, _) if version == Version::HTTP_10 => {
            headers.insert(header::HOST, HeaderValue::from_static("localhost"));
            Ok(())
        }
        _ => Err("the request does not have one Host header"),
    }
}

/// Gives a request of HTTP/2 its host in `:authority` only (RFC 9113, section 8.3.1).
fn set_authority(uri: &mut Uri, headers: &mut HeaderMap) -> Result<(), &'static str> {
    const WRONG: &str = "the request's target is wrong";
    let host = headers.remove(header::HOST);
    if let Some(authority) = uri.authority() {
        return host_of(authority).map(drop);
    }
    let host = host.ok_or("the request has no :authority")?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let built = Uri::builder()
        .scheme("http")
        .authority(host.as_bytes())
        .path_and_query(path);
    *uri = built.build().map_err(|_| WRONG)?;
    Ok(())
}

fn host_of(authority: &Authority) -> Result<HeaderValue, &'static str> {
    if authority.as_str().contains('@') {
        return Err("the request's target has a user's name");
    }
    HeaderValue::from_str(authority.as_str()).map_err(|_| "the request's target has no host")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let line = |&(name, value): &(&str, &str)| {
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            (name, HeaderValue::from_str(value).unwrap())
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn what_only_a_proxy_may_say_is_removed() {
        let mut sent = headers(&[
            ("X-Own", "bob"),
            ("x_own", "bob"),
            ("X.OWN", "bob"),
            ("X-Owner", "bob"),
            ("XOwn", "bob"),
            ("X-Remote-User", "bob"),
            ("Remote_User", "bob"),
            ("X-Forwarded-User", "bob"),
            ("X-Forwarded-For", "10.0.0.1"),
            ("Forwarded", "for=10.0.0.1"),
            ("X-Real-IP", "10.0.0.1"),
            ("User-Agent", "bob"),
        ]);
        remove_claims(&mut sent, &HeaderName::from_static("x-own"));
        let mut left: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["user-agent", "x-owner", "xown"]);
    }

    #[test]
    fn a_page_of_another_site_is_told_by_what_browsers_say() {
        let own = ("Host", "app:8080");
        for (said, is_other) in [
            (None, false),
            (Some(("Sec-Fetch-Site", "same-origin")), false),
            (Some(("Sec-Fetch-Site", "none")), false),
            (Some(("Sec-Fetch-Site", "same-site")), true),
            (Some(("Sec-Fetch-Site", "cross-site")), true),
            (Some(("Origin", "http://app:8080")), false),
            (Some(("Origin", "http://APP:8080")), false),
            (Some(("Origin", "http://app")), true),
            (Some(("Origin", "http://other:8080")), true),
            (Some(("Origin", "null")), true),
            (Some(("Origin", "app:8080")), true),
        ] {
            let lines: Vec<_> = [Some(own), said].into_iter().flatten().collect();
            let sent = headers(&lines);
            let uri = Uri::from_static("/a");
            assert_eq!(is_of_another_site(&uri, &sent), is_other, "{said:?}");
        }
        let sent = headers(&[("Origin", "http://app:8080")]);
        assert!(!is_of_another_site(
            &Uri::from_static("http://app:8080/a"),
            &sent
        ));
        assert!(is_of_another_site(&Uri::from_static("http://app/a"), &sent));
    }

    #[test]
    fn what_concerns_one_connection_is_removed() {
        let mut sent = headers(&[
            ("Connection", "close, X-Own"),
            ("Connection", "cookie, host, content-length"),
            ("Host", "app"),
            ("Content-Length", "1"),
            ("X-Own", "1"),
            ("Cookie", "a=b"),
            ("Keep-Alive", "timeout=5"),
            ("Transfer-Encoding", "chunked"),
            ("Upgrade", "h2c"),
            ("Accept", "*/*"),
        ]);
        remove_hop_by_hop(&mut sent);
        let kept = [("Accept", "*/*"), ("Content-Length", "1"), ("Host", "app")];
        assert_eq!(sent, headers(&kept));
    }

    #[test]
    fn a_request_has_one_host() {
        let mut sent = headers(&[("Host", "other")]);
        let form = |target: &str, sent: &mut HeaderMap, version| {
            let mut uri: Uri = target.parse().unwrap();
            to_origin_form(&mut uri, sent, version).map(|()| uri.to_string())
        };
        let absolute = form("http://app:8080/a?b", &mut sent, Version::HTTP_11);
        assert_eq!(absolute.unwrap(), "/a?b");
        assert_eq!(sent[header::HOST], "app:8080");
        for same in ["/a?b", "*"] {
            assert_eq!(form(same, &mut sent, Version::HTTP_11).unwrap(), same);
        }
        assert!(form("http://bob@app/", &mut sent, Version::HTTP_11).is_err());

        let mut none = HeaderMap::new();
        assert!(form("/", &mut none, Version::HTTP_11).is_err());
        form("/", &mut none, Version::HTTP_10).unwrap();
        assert_eq!(none[header::HOST], "localhost");
        let mut two = headers(&[("Host", "one"), ("Host", "two")]);
        assert!(form("/", &mut two, Version::HTTP_11).is_err());
    }

    #[test]
    fn a_request_of_http2_has_its_host_in_the_target() {
        let authority = |target: &str, sent: &mut HeaderMap| {
            let mut uri: Uri = target.parse().unwrap();
            set_authority(&mut uri, sent).map(|()| uri.to_string())
        };
        let mut sent = headers(&[("Host", "other")]);
        assert_eq!(
            authority("http://app/a", &mut sent).unwrap(),
            "http://app/a"
        );
        assert!(sent.is_empty());
        let mut sent = headers(&[("Host", "app:1")]);
        assert_eq!(authority("/a", &mut sent).unwrap(), "http://app:1/a");
        assert!(authority("/a", &mut HeaderMap::new()).is_err());
    }
}
