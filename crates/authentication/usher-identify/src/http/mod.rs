//! A reverse proxy that tells the server who the user is in a header of each request.
//!
//! No connection to the server carries requests of two users: with HTTP/1.1 each request gets a new
//! connection, with HTTP/2 each client's connection gets one. The proxy removes the client's own headers of
//! that name, headers that a server may take for it, and headers that concern only one connection (RFC 9110,
//! section 7.6.1). A connection can change its protocol only to WebSocket: after any other change the client
//! could send requests that this proxy does not read. The policy, not the client, chooses the version of
//! HTTP, because a server for one version may misread the other.

mod request;

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use http_body_util::combinators::MapFrame;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode, Version, client, server};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::sleep;
use usher_daemon::quota::Taken;

pub use request::User;
use request::{is_of_another_site, is_websocket, remove_hop_by_hop, set_websocket};

use crate::{Server, Unserved, connect};

/// How long a client may take for the headers of a request, and be silent between two requests.
const SILENCE: Duration = Duration::from_secs(60);
/// Limit of buffered bytes of one connection, each way; HTTP/1.1.
const BUFFER: usize = 64 * 1024;
/// Limit of a request's headers: how many (HTTP/1.1), and their bytes (HTTP/2).
const HEADERS: usize = 256;
const HEADER_BYTES: u32 = 64 * 1024;
/// Limit of requests of one connection at a time; HTTP/2.
const REQUESTS: u32 = 100;
/// Limits of buffered bytes; HTTP/2: received ones of all bodies of a connection and of one body, unsent ones
/// of one body.
const WINDOW: u32 = 256 * 1024;
const BODY: u32 = 64 * 1024;
const UNSENT: usize = 16 * 1024;

/// A body that is passed on, with a function that sees each frame.
type Passed = MapFrame<Incoming, Box<dyn FnMut(Frame<Bytes>) -> Frame<Bytes> + Send>>;
/// A body for the client: the server's, or a sentence of this proxy's.
type Answer = Either<Passed, Full<Bytes>>;

/// A client's connection.
struct Client {
    user: User,
    server: Arc<Server>,
    /// The numbers of requests without a complete answer, and of all requests so far; HTTP/2.
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

/// Serves a client's connection over HTTP/2, by one connection to the server, until either connection ends or
/// the client is silent.
///
/// # Errors
/// When the client or the server breaks off, or does not speak HTTP/2.
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
            let request = match counted.0.user.prepare(request, false) {
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
            // The client gets GOAWAY, and connects again.
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
    /// The answer to a request of HTTP/1: the server's, or a refusal with the reason.
    async fn answer(self: Arc<Self>, mut request: Request<Incoming>) -> Response<Answer> {
        let websocket = is_websocket(&request);
        if let Some(refusal) = refused(&request, websocket) {
            return refusal;
        }
        let from_client = websocket.then(|| hyper::upgrade::on(&mut request));
        let request = match self.user.prepare(request, websocket) {
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
        self.server.warnings.say(&self.user.client, error);
        let reason = "the service's server cannot be reached; the journal of its host says why";
        refusal(StatusCode::BAD_GATEWAY, reason)
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
    // The server may speak HTTP/1.0.
    if head.version == Version::HTTP_10 {
        head.version = Version::HTTP_11;
    }
    let passing = Box::new(move |frame| {
        let _open = &counted;
        frame
    });
    Response::from_parts(head, Either::Left(body.map_frame(passing)))
}

/// The answer if the server broke off, or if the client broke off its own request.
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

/// The answer to a request that must not be passed on; none if it may.
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

fn refusal(status: StatusCode, reason: &'static str) -> Response<Answer> {
    let text = Full::new(Bytes::from(format!("usher: {reason}\n")));
    let mut response = Response::new(Either::Right(text));
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}
