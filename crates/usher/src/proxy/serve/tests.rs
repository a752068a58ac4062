//! The beginning of an IMAP connection, with real sockets.

use super::*;

/// A client and a server, and the proxy's ends of both.
async fn ends() -> [TcpStream; 4] {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let client = TcpStream::connect(address).await.unwrap();
    let (local, _) = listener.accept().await.unwrap();
    let remote = TcpStream::connect(address).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    [client, local, remote, server]
}

/// Everything that the client receives until the end, when it and the server send this.
async fn told(client_says: &str, server_says: &str, patience: &Patience) -> String {
    let [mut client, local, remote, mut server] = ends().await;
    server.write_all(server_says.as_bytes()).await.unwrap();
    client.write_all(client_says.as_bytes()).await.unwrap();
    let mut told = String::new();
    let carriers = Carriers::new(1);
    let (_, read) = tokio::join!(
        imap(local, remote, "alice", &carriers, patience),
        client.read_to_string(&mut told)
    );
    read.unwrap();
    told
}

#[tokio::test]
async fn the_end_of_patience_is_told_in_the_protocols_words() {
    let short = Duration::ZERO;
    let (greeting, login) = (PATIENCE.greeting, PATIENCE.login);
    let patience = Patience {
        greeting,
        login: short,
    };
    let told_late = told(
        "a NOOP\r\n",
        "* PREAUTH [CAPABILITY IMAP4rev1] hello\r\n",
        &patience,
    )
    .await;
    let (_, last) = told_late.trim_end().rsplit_once("\r\n").unwrap();
    assert!(last.starts_with("* BYE Usher: the login "), "{told_late}");
    let patience = Patience {
        greeting: short,
        login,
    };
    assert_eq!(
        told("", "* PRE", &patience).await,
        "* BYE Usher: the server sends no greeting\r\n"
    );
    // With the proxy's own time limits.
    let served = told(
        "a LOGOUT\r\n",
        "* PREAUTH [CAPABILITY IMAP4rev1] hello\r\n",
        &PATIENCE,
    )
    .await;
    assert!(served.ends_with("a OK done\r\n"), "{served}");
}

#[tokio::test]
async fn a_server_that_is_gone_before_the_login_is_told() {
    for said in ["", "* PREAUTH [CAPABILITY IMAP4rev1] hello\r\n"] {
        let [mut client, local, remote, mut server] = ends().await;
        server.write_all(said.as_bytes()).await.unwrap();
        abort(&server);
        let mut told = String::new();
        let carriers = Carriers::new(1);
        let (_, read) = tokio::join!(
            imap(local, remote, "alice", &carriers, &PATIENCE),
            client.read_to_string(&mut told)
        );
        read.unwrap();
        assert!(
            told.ends_with("* BYE Usher: the server has ended this connection\r\n"),
            "{told}"
        );
    }
}

#[tokio::test]
async fn a_server_whose_greeting_lacks_capabilities_is_asked() {
    let said = "* PREAUTH hello\r\n* 3 EXISTS\r\n* CAPABILITY IMAP4rev1 IDLE\r\nusher OK done\r\n";
    let [mut client, local, remote, mut server] = ends().await;
    server.write_all(said.as_bytes()).await.unwrap();
    client.write_all(b"a LOGIN alice x\r\n").await.unwrap();
    let (mut told, mut asked) = (String::new(), String::new());
    let carriers = Carriers::new(1);
    let ending = async {
        let mut question = [0; 18];
        server.read_exact(&mut question).await.unwrap();
        asked = String::from_utf8_lossy(&question).into();
        server.shutdown().await.unwrap();
        client.read_to_string(&mut told).await.unwrap();
        client.shutdown().await.unwrap();
    };
    let (served, ()) = tokio::join!(imap(local, remote, "alice", &carriers, &PATIENCE), ending);
    served.unwrap();
    assert_eq!(asked, "usher CAPABILITY\r\n");
    let (greeting, rest) = told.split_once("\r\n").unwrap();
    assert!(
        greeting.starts_with("* OK [CAPABILITY IMAP4rev1 IDLE AUTH=PLAIN SASL-IR] "),
        "{told}"
    );
    assert_eq!(
        rest,
        "a OK [CAPABILITY IMAP4rev1 IDLE] you are alice\r\n* 3 EXISTS\r\n"
    );
}
