//! A reverse proxy that tells the server who the user is in a header of each request.
//!
//! A client's connection has a connection of its own to the server, in the version of HTTP that the client
//! speaks, so that no request of one user is ever on a connection of another. What the client says in that
//! header, or in one that a server may take for it, is removed, and so is what concerns only this connection
//! (RFC 9110, section 7.6.1). Of protocols that a connection can change to, only WebSocket passes: after any
//! other change the client could send requests that nobody reads here.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::combinators::MapFrame;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::copy_bidirectional;
use tokio::net::TcpStream;
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard};
use usher_daemon::quota::Taken;

use crate::{Server, Unserved, connect};

/// How long a client may take for the headers of a request, and be silent between two.
const SILENCE: Duration = Duration::from_secs(60);
/// Limit of what is kept of a client's request before it is passed on, in bytes; HTTP/1.1.
const BUFFER: usize = 64 * 1024;
/// Limit of the headers of a request, in bytes; HTTP/2.
const HEADERS: u32 = 64 * 1024;
/// Limit of requests of one connection at a time; HTTP/2.
const REQUESTS: u32 = 100;
/// Limit of what waits of one connection's bodies, in bytes; HTTP/2.
const WINDOW: u32 = 256 * 1024;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// A body from the client, on its way to the server.
type Sent = MapFrame<Incoming, Box<dyn FnMut(Frame<Bytes>) -> Frame<Bytes> + Send>>;
/// A body for the client: the server's, or a sentence.
type Answer = Either<Incoming, Full<Bytes>>;

/// What is being sent, and its answer, or the request itself if none of it was sent.
type Answering = Pin<Box<dyn Future<Output = Result<Response<Incoming>, Unsent>> + Send>>;
type Unsent = TrySendError<Request<Sent>>;

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
    /// The connection to the server, if one is open.
    sender: Mutex<Option<Sender>>,
    /// Its place among the user's connections, also when it has become a WebSocket.
    _permit: Taken<u32>,
}

enum Sender {
    Http1(http1::SendRequest<Sent>),
    Http2(http2::SendRequest<Sent>),
}

/// Why a request has no answer of the server.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Unserved(#[from] Unserved),
    #[error("the service's server broke off: {0}")]
    Broken(#[from] hyper::Error),
    #[error("the service's server closed the connection")]
    Closed,
}

/// Serves a client's connection until it ends.
///
/// # Errors
/// When the client breaks it off, or does not speak HTTP.
pub async fn serve(
    connection: TcpStream,
    user: User,
    server: Arc<Server>,
    permit: Taken<u32>,
) -> io::Result<()> {
    let client = Arc::new(Client {
        user,
        server,
        sender: Mutex::new(None),
        _permit: permit,
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(SILENCE)
        .max_buf_size(BUFFER);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(REQUESTS)
        .max_header_list_size(HEADERS)
        .initial_connection_window_size(WINDOW);
    let service = service_fn(move |request| {
        let client = Arc::clone(&client);
        async move { Ok::<_, Infallible>(client.answer(request).await) }
    });
    builder
        .serve_connection_with_upgrades(TokioIo::new(connection), service)
        .await
        .map_err(io::Error::other)
}

impl Client {
    /// The answer to a request: the server's, or why there is none.
    async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Response<Answer> {
        if request.method() == Method::CONNECT {
            return refusal(
                StatusCode::METHOD_NOT_ALLOWED,
                "CONNECT is not passed on: this is no proxy",
            );
        }
        let websocket = is_websocket(&request);
        let from_client = websocket.then(|| hyper::upgrade::on(&mut request));
        let request = match self.prepare(request, websocket) {
            Ok(request) => request,
            Err(reason) => return refusal(StatusCode::BAD_REQUEST, reason),
        };
        let mut response = match self.send(request).await {
            Ok(response) => response,
            Err(Failure::Unserved(error)) => {
                tracing::warn!(client = %self.user.address, %error, "a request is not served");
                let reason =
                    "the service's server cannot be reached; the journal of its host says why";
                return refusal(StatusCode::BAD_GATEWAY, reason);
            }
            // The server's doing, or that of a client which broke off its own request.
            Err(error) => {
                tracing::debug!(client = %self.user.address, %error, "a request has no answer");
                let reason = "the service's server broke off";
                return refusal(StatusCode::BAD_GATEWAY, reason);
            }
        };
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        remove_hop_by_hop(response.headers_mut());
        if switched {
            let Some(from_client) = from_client else {
                return refusal(
                    StatusCode::BAD_GATEWAY,
                    "the service's server changes the protocol unasked",
                );
            };
            let from_server = hyper::upgrade::on(&mut response);
            set_websocket(response.headers_mut());
            let client = Arc::clone(&self);
            tokio::spawn(async move {
                if let Err(error) = join(from_client, from_server).await {
                    tracing::debug!(%error, "a WebSocket broke");
                }
                drop(client);
            });
        }
        response.map(Either::Left)
    }

    /// The request as the server gets it.
    fn prepare(
        &self,
        request: Request<Incoming>,
        websocket: bool,
    ) -> Result<Request<Sent>, &'static str> {
        let (mut head, body) = request.into_parts();
        let is_http2 = head.version == Version::HTTP_2;
        let is_chunked = head.headers.contains_key(header::TRANSFER_ENCODING);
        let takes_trailers = head
            .headers
            .get(header::TE)
            .is_some_and(|value| value == "trailers");
        remove_hop_by_hop(&mut head.headers);
        if is_chunked {
            head.headers.remove(header::CONTENT_LENGTH);
        }
        for name in [header::EXPECT, header::FORWARDED, HTTP2_SETTINGS] {
            head.headers.remove(name);
        }
        let header = self.user.header.clone();
        remove_alike(&mut head.headers, &header);
        let address = HeaderValue::try_from(self.user.address.to_canonical().to_string());
        let address = address.map_err(|_| "the client has no address")?;
        remove_alike(&mut head.headers, &X_FORWARDED_FOR);
        head.headers.insert(X_FORWARDED_FOR, address);
        head.headers.insert(&header, self.user.name.clone());
        if is_http2 {
            if head.uri.authority().is_none() {
                return Err("the request has no :authority");
            }
            if takes_trailers {
                let trailers = HeaderValue::from_static("trailers");
                head.headers.insert(header::TE, trailers);
            }
        } else {
            head.version = Version::HTTP_11;
            to_origin_form(&mut head.uri, &mut head.headers)?;
            if websocket {
                set_websocket(&mut head.headers);
            }
        }
        let clean: Box<dyn FnMut(Frame<Bytes>) -> Frame<Bytes> + Send> =
            Box::new(move |mut frame| {
                if let Some(trailers) = frame.trailers_mut() {
                    remove_alike(trailers, &header);
                    remove_alike(trailers, &X_FORWARDED_FOR);
                }
                frame
            });
        Ok(Request::from_parts(head, body.map_frame(clean)))
    }

    /// Sends a request, once more if the server had closed the connection before it began.
    async fn send(&self, mut request: Request<Sent>) -> Result<Response<Incoming>, Failure> {
        let is_http2 = request.version() == Version::HTTP_2;
        let mut tries = 2;
        loop {
            tries -= 1;
            let sending = self.sender(is_http2).await?.send(request);
            match sending.await {
                Ok(response) => return Ok(response),
                Err(mut error) => match error.take_message().filter(|_| tries > 0) {
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
        }
    }

    /// The connection to the server: the open one if it still takes requests, else a new one.
    async fn sender(&self, is_http2: bool) -> Result<MappedMutexGuard<'_, Sender>, Failure> {
        let mut place = self.sender.lock().await;
        let ready = match place.as_mut() {
            Some(sender) => sender.is_ready().await,
            None => false,
        };
        if !ready {
            *place = Some(self.open(is_http2).await?);
        }
        MutexGuard::try_map(place, Option::as_mut).map_err(|_| Failure::Closed)
    }

    /// A new connection to the server.
    async fn open(&self, is_http2: bool) -> Result<Sender, Failure> {
        let stream = TokioIo::new(connect(&self.server.socket).await?);
        Ok(if is_http2 {
            let builder = http2::Builder::new(TokioExecutor::new());
            let (sender, connection) = builder.handshake(stream).await?;
            tokio::spawn(ended(connection));
            Sender::Http2(sender)
        } else {
            let (sender, connection) = http1::handshake(stream).await?;
            tokio::spawn(ended(connection.with_upgrades()));
            Sender::Http1(sender)
        })
    }
}

impl Sender {
    /// Waits until it takes a request. Whether it does.
    async fn is_ready(&mut self) -> bool {
        let ready = match self {
            Self::Http1(sender) => sender.ready().await,
            Self::Http2(sender) => sender.ready().await,
        };
        ready.is_ok()
    }

    /// Sends a request. The answer is awaited without a lock on this: requests of HTTP/2 wait for no other.
    fn send(&mut self, request: Request<Sent>) -> Answering {
        match self {
            Self::Http1(sender) => Box::pin(sender.try_send_request(request)),
            Self::Http2(sender) => Box::pin(sender.try_send_request(request)),
        }
    }
}

/// Runs a connection to the server. Its requests learn how it ends.
async fn ended(connection: impl Future<Output = hyper::Result<()>>) {
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the server broke");
    }
}

/// Passes the bytes of a WebSocket on, both ways, until it ends.
async fn join(client: OnUpgrade, server: OnUpgrade) -> io::Result<()> {
    let (client, server) = tokio::try_join!(client, server).map_err(io::Error::other)?;
    let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
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

/// Removes what concerns only one of the two connections (RFC 9110, section 7.6.1).
fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let connection = headers.get_all(header::CONNECTION).iter();
    let listed: Vec<HeaderName> = connection
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
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

/// Removes a header, and those that a server may take for it: CGI and its successors make one variable of names
/// that differ in what is no letter or digit (RFC 3875, section 4.1.18).
fn remove_alike(headers: &mut HeaderMap, name: &HeaderName) {
    let alike = |other: &HeaderName| {
        let plain = |byte: u8| {
            if byte.is_ascii_alphanumeric() {
                byte
            } else {
                b'_'
            }
        };
        let (own, other) = (name.as_str().bytes(), other.as_str().bytes());
        own.map(plain).eq(other.map(plain))
    };
    let found: Vec<HeaderName> = headers.keys().filter(|name| alike(name)).cloned().collect();
    for name in found {
        headers.remove(name);
    }
}

/// Makes a request's target one for a server (RFC 9112, section 3.2.1): a host in it goes to the Host header.
fn to_origin_form(uri: &mut Uri, headers: &mut HeaderMap) -> Result<(), &'static str> {
    let Some(authority) = uri.authority() else {
        return Ok(());
    };
    let host = HeaderValue::from_str(authority.as_str());
    let host = host.map_err(|_| "the request's target has no host")?;
    if authority.as_str().contains('@') {
        return Err("the request's target has a user's name");
    }
    headers.insert(header::HOST, host);
    let path = uri.path_and_query().cloned();
    *uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
    Ok(())
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
    fn headers_that_a_server_may_take_for_the_users_are_removed() {
        let mut sent = headers(&[
            ("X-Remote-User", "bob"),
            ("x_remote_user", "bob"),
            ("X-Remote_User", "bob"),
            ("X.REMOTE.USER", "bob"),
            ("X-Remote-Users", "bob"),
            ("XRemoteUser", "bob"),
        ]);
        remove_alike(&mut sent, &HeaderName::from_static("x-remote-user"));
        let mut left: Vec<&str> = sent.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["x-remote-users", "xremoteuser"]);
    }

    #[test]
    fn what_concerns_one_connection_is_removed() {
        let mut sent = headers(&[
            ("Connection", "close, X-Own"),
            ("Connection", "cookie"),
            ("X-Own", "1"),
            ("Cookie", "a=b"),
            ("Keep-Alive", "timeout=5"),
            ("Transfer-Encoding", "chunked"),
            ("Upgrade", "h2c"),
            ("Accept", "*/*"),
        ]);
        remove_hop_by_hop(&mut sent);
        assert_eq!(sent, headers(&[("Accept", "*/*")]));
    }

    #[test]
    fn a_target_with_a_host_becomes_one_without() {
        let mut sent = headers(&[("Host", "other")]);
        let mut uri = Uri::from_static("http://app:8080/a?b");
        to_origin_form(&mut uri, &mut sent).unwrap();
        assert_eq!(
            (uri.to_string().as_str(), &sent[header::HOST]),
            ("/a?b", &HeaderValue::from_static("app:8080"))
        );
        for same in ["/a?b", "*"] {
            let mut uri: Uri = same.parse().unwrap();
            to_origin_form(&mut uri, &mut sent).unwrap();
            assert_eq!(uri.to_string(), same);
        }
        let mut uri = Uri::from_static("http://bob@app/");
        assert!(to_origin_form(&mut uri, &mut sent).is_err());
    }
}
