// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Serves the number of primes below a number, and says in a header how many instructions that has
//! taken: those of this request only, however many others the thread serves meanwhile.
//!
//! ```text
//! cargo run --example web -- 127.0.0.1:8080
//! curl -i http://127.0.0.1:8080/10000
//! ```

use std::convert::Infallible;
use std::env;
use std::error::Error;
use std::rc::Rc;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use perfctr::{Counting, Event, start};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::{LocalSet, yield_now};

fn main() -> Result<(), Box<dyn Error>> {
    let address = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:8080".to_owned());
    let counting = Rc::new(start([Event::INSTRUCTIONS.user()])?);
    let runtime = Builder::new_current_thread().enable_io().build()?;
    LocalSet::new().block_on(&runtime, serve(&address, counting))
}

async fn serve(address: &str, counting: Rc<Counting<1>>) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind(address).await?;
    println!("http://{}/10000", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let counting = counting.clone();
        tokio::task::spawn_local(async move {
            let answer = service_fn(|request| counted(&counting, request));
            let served = http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
            served.inspect_err(|error| eprintln!("{error}")).ok();
        });
    }
}

/// Answers, and counts that.
async fn counted(
    counting: &Counting<1>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let counted = counting.polls(answer(request)).await;
    Ok(counted.map_or_else(
        |error| Response::new(Full::from(format!("{error}\n"))),
        |(mut response, spent)| {
            response.headers_mut().insert("instructions", spent.counts[0].into());
            response
        },
    ))
}

/// Lets others have a turn again and again.
async fn answer(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let end: u64 = request.uri().path().trim_start_matches('/').parse().unwrap_or(0);
    let mut primes = 0;
    for n in 2..end {
        if n % 1_000 == 0 {
            yield_now().await;
        }
        primes += u64::from((2..n).take_while(|d| d * d <= n).all(|d| n % d != 0));
    }
    Response::new(Full::from(format!("{primes} primes below {end}\n")))
}
