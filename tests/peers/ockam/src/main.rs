//! A small real Ockam node: the peer of our tests and the subject of our benchmarks.
//!
//!     serve [--port N] [--over ws|udp] [--connect HOST:PORT --name NAME] [--outlet HOST:PORT]
//!           [--secure NAME]
//!     inlet HOST:PORT ROUTE
//!     ask HOST:PORT ROUTE SIZE COUNT [--over ws|udp] [--secure ROUTE]
//!     bench-oneway HOST:PORT ROUTE SIZE COUNT [--secure ROUTE]
//!     bench-roundtrip HOST:PORT ROUTE SIZE COUNT [--secure ROUTE]
//!     bench-handshakes HOST:PORT ROUTE COUNT
//!     bench-local COUNT SIZE
//!
//! ROUTE is local names with `=>` between them. `--patience SECONDS` limits the wait for a reply.
//! Each mode takes `--threads N`: 1 is a runtime of one thread for everything, more is so many
//! workers beside the thread of the router; without it the node chooses as Ockam does: one worker
//! for each core.
//!
//! A result goes to standard output, an error as one line to standard error with exit code 1.
//! `inlet` and `outlet` are the two ends of a portal: whoever connects to the inlet's port talks to
//! the server behind the outlet at the end of ROUTE.
//! `--secure` is the name of a listener for secure channels, or the route to one: what is asked then
//! goes through a channel, and ROUTE begins at its other end. Whoever proves an identity is trusted;
//! the worker `who` tells that of its node. `bench-handshakes` opens so many channels to the listener
//! at ROUTE, one after the other, each closed before the next.
//! `--over` takes another transport than TCP. What is served over it is served there alone.

use ockam_core::flow_control::FlowControlId;
use ockam_core::{route, Address, Any, NeutralMessage, Result, Route, Routed, Worker};
use ockam_identity::{
    secure_channels, Identifier, SecureChannel, SecureChannelListenerOptions, SecureChannelOptions,
    SecureChannels,
};
use ockam_node::tokio::{runtime, time};
use ockam_node::workers::Echoer;
use ockam_node::{Context, MessageReceiveOptions, NodeBuilder};
use ockam_transport_tcp::{
    TcpConnection, TcpConnectionOptions, TcpInletOptions, TcpListenerOptions, TcpOutletOptions,
    TcpTransport,
};
use ockam_transport_udp::{UdpBindArguments, UdpBindOptions, UdpTransport};
use ockam_transport_websocket::{WebSocketTransport, WS};
use std::io::Write;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest wait for a reply, unless told. 16 MiB through several nodes take a while.
const PATIENCE: u64 = 20;
/// What `slow` takes for a message.
const SLOWNESS: Duration = Duration::from_millis(50);
/// A message to `sink` that starts with this asks for the count.
const REPORT: &[u8] = b"report";
/// How often a sink is asked before what it misses counts as lost.
const REPORTS: usize = 200;
/// Between two questions, so that asking does not become the load.
const PAUSE: Duration = Duration::from_millis(20);

type Outcome<T> = std::result::Result<T, String>;

// --- Workers -------------------------------------------------------------------------------------

/// Returns the payload as it came; Ockam's own `Echoer` takes nothing but BARE strings.
///
/// It works on one message at a time: while one is delayed, its inbox of 8 fills up.
struct RawEcho {
    delay: Duration,
}

#[ockam_core::worker]
impl Worker for RawEcho {
    type Context = Context;
    type Message = Any;

    async fn handle_message(&mut self, ctx: &mut Context, msg: Routed<Any>) -> Result<()> {
        if !self.delay.is_zero() {
            time::sleep(self.delay).await;
        }
        let back = msg.return_route();
        let payload = NeutralMessage::from(msg.into_payload());
        ctx.send(back, payload).await
    }
}

/// Takes itself off the onward route, puts itself on the return route, and sends on.
struct Hop;

#[ockam_core::worker]
impl Worker for Hop {
    type Context = Context;
    type Message = Any;

    async fn handle_message(&mut self, ctx: &mut Context, msg: Routed<Any>) -> Result<()> {
        let msg = msg.into_local_message().step_forward(&ctx.address())?;
        ctx.forward(msg).await
    }
}

/// Counts, and says how many when asked; asking starts the count anew.
struct Sink {
    count: u64,
}

#[ockam_core::worker]
impl Worker for Sink {
    type Context = Context;
    type Message = Any;

    async fn handle_message(&mut self, ctx: &mut Context, msg: Routed<Any>) -> Result<()> {
        if !msg.payload().starts_with(REPORT) {
            self.count += 1;
            return Ok(());
        }
        let count = std::mem::take(&mut self.count).to_string().into_bytes();
        ctx.send(msg.return_route(), NeutralMessage::from(count))
            .await
    }
}

/// The way out to another node: sends on over the connection, and answers come to the way `back`.
///
/// Out and back are two workers. One worker for both would wait for room on the connection while
/// the connection waits for room in the worker's inbox, and under load that never ends.
struct WayOut {
    connection: Address,
    back: Address,
}

#[ockam_core::worker]
impl Worker for WayOut {
    type Context = Context;
    type Message = Any;

    async fn handle_message(&mut self, ctx: &mut Context, msg: Routed<Any>) -> Result<()> {
        let msg = msg
            .into_local_message()
            .replace_front_onward_route(&self.connection)?
            .push_front_return_route(&self.back);
        ctx.forward(msg).await
    }
}

/// The way back: whoever answers the answer must go the way `out` again, not into the connection.
struct WayBack {
    out: Address,
}

#[ockam_core::worker]
impl Worker for WayBack {
    type Context = Context;
    type Message = Any;

    async fn handle_message(&mut self, ctx: &mut Context, msg: Routed<Any>) -> Result<()> {
        let mut msg = msg.into_local_message().pop_front_onward_route()?;
        msg.return_route
            .modify()
            .pop_front()
            .prepend(self.out.clone());
        ctx.forward(msg).await
    }
}

/// Tells the identity of this node.
struct Who {
    identifier: String,
}

#[ockam_core::worker]
impl Worker for Who {
    type Context = Context;
    type Message = Any;

    async fn handle_message(&mut self, ctx: &mut Context, msg: Routed<Any>) -> Result<()> {
        let identifier = NeutralMessage::from(self.identifier.clone().into_bytes());
        ctx.send(msg.return_route(), identifier).await
    }
}

/// Starts what every node here offers, and returns the names.
async fn start_workers(ctx: &Context) -> Result<Vec<&'static str>> {
    ctx.start_worker("echoer", Echoer).await?;
    let delay = Duration::ZERO;
    ctx.start_worker("raw_echo", RawEcho { delay }).await?;
    let delay = SLOWNESS;
    ctx.start_worker("slow", RawEcho { delay }).await?;
    ctx.start_worker("sink", Sink { count: 0 }).await?;
    let hops = ["hop", "hop1", "hop2", "hop3"];
    for hop in hops {
        ctx.start_worker(hop, Hop).await?;
    }
    Ok([&["echoer", "raw_echo", "slow", "sink"], &hops[..]].concat())
}

// --- Serving -------------------------------------------------------------------------------------

async fn serve(ctx: Context, options: Options) -> Outcome<()> {
    let workers = start_workers(&ctx).await.map_err(said)?;
    let here = format!("127.0.0.1:{}", options.port);
    let (port, flow) = match options.over.as_deref() {
        None => serve_over_tcp(&ctx, &here, &workers, &options).await?,
        Some("ws") => serve_over_web_socket(&ctx, &here).await?,
        Some("udp") => serve_over_udp(&ctx, &here, &workers).await?,
        Some(other) => return Err(format!("there is no transport {other}")),
    };
    if let Some(name) = options.secure {
        listen_securely(&ctx, &name, &workers, flow.as_ref())
            .await
            .map_err(said)?;
    }
    stay(port).await
}

/// The port, and the flow of what comes there.
type Served = (u16, Option<FlowControlId>);

async fn serve_over_tcp(
    ctx: &Context,
    here: &str,
    workers: &[&str],
    options: &Options,
) -> Outcome<Served> {
    let tcp = TcpTransport::create(ctx).await.map_err(said)?;
    let listening = tcp.listen(here, TcpListenerOptions::new()).await;
    let listener = listening.map_err(said)?;
    expose(ctx, workers, listener.flow_control_id());
    if let Some(peer) = &options.connect {
        let connection = dial(&tcp, peer).await?;
        let (out, back) = (options.name.clone(), format!("{}_back", options.name));
        start_ways(ctx, &connection, &out, &back)
            .await
            .map_err(said)?;
        expose(ctx, &[out.as_str()], listener.flow_control_id());
        expose(ctx, &[back.as_str()], connection.flow_control_id());
        expose(ctx, workers, connection.flow_control_id());
    }
    if let Some(server) = &options.outlet {
        let server = server.clone().try_into().map_err(said)?;
        let consumer = TcpOutletOptions::new().as_consumer(listener.flow_control_id());
        let started = tcp.create_outlet("outlet", server, consumer).await;
        started.map_err(said)?;
    }
    let flow = listener.flow_control_id().clone();
    Ok((listener.socket_address().port(), Some(flow)))
}

/// Ockam's WebSockets have no flow control: what comes reaches every worker.
async fn serve_over_web_socket(ctx: &Context, here: &str) -> Outcome<Served> {
    let transport = WebSocketTransport::create(ctx).await.map_err(said)?;
    let place = transport.listen(here).await.map_err(said)?;
    Ok((place.port(), None))
}

async fn serve_over_udp(ctx: &Context, here: &str, workers: &[&str]) -> Outcome<Served> {
    let transport = UdpTransport::create(ctx).await.map_err(said)?;
    let here = UdpBindArguments::new()
        .with_bind_address(here)
        .map_err(said)?;
    let bound = transport.bind(here, UdpBindOptions::new()).await;
    let bound = bound.map_err(said)?;
    expose(ctx, workers, bound.flow_control_id());
    let flow = bound.flow_control_id().clone();
    Ok((bound.bind_address().port(), Some(flow)))
}

/// Lets others open secure channels at a name, and use the workers through these.
async fn listen_securely(
    ctx: &Context,
    name: &str,
    workers: &[&str],
    flow: Option<&FlowControlId>,
) -> Result<()> {
    let (channels, own) = identified().await?;
    let identifier = own.to_string();
    ctx.start_worker("who", Who { identifier }).await?;
    let mut options = SecureChannelListenerOptions::new();
    if let Some(flow) = flow {
        options = options.as_consumer(flow);
        expose(ctx, &["who"], flow);
    }
    let inside = options.spawner_flow_control_id();
    expose(ctx, workers, &inside);
    expose(ctx, &["who"], &inside);
    channels
        .create_secure_channel_listener(ctx, &own, name, options)
        .await?;
    Ok(())
}

/// What opens and takes channels, and a new identity for it.
async fn identified() -> Result<(Arc<SecureChannels>, Identifier)> {
    let channels = secure_channels().await?;
    let creation = channels.identities().identities_creation();
    let own = creation.create_identity().await?;
    Ok((channels, own))
}

async fn opened(
    ctx: &Context,
    channels: &SecureChannels,
    own: &Identifier,
    route: Route,
) -> Outcome<SecureChannel> {
    channels
        .create_secure_channel(ctx, own, route, SecureChannelOptions::new())
        .await
        .map_err(said)
}

/// Opens a secure channel along a route; returns the route through it.
async fn secured(ctx: &Context, route: Route, names: &str) -> Outcome<Route> {
    let (channels, own) = identified().await.map_err(said)?;
    let channel = opened(ctx, &channels, &own, route).await?;
    ctx.flow_controls()
        .add_consumer(ctx.address(), channel.flow_control_id());
    let names = Route::parse(names).ok_or(format!("`{names}` is no route"))?;
    let mut route = route![channel.encryptor_address().clone()];
    route.modify().append_route(names);
    Ok(route)
}

async fn inlet(ctx: Context, peer: &str, names: &str) -> Outcome<()> {
    let tcp = TcpTransport::create(&ctx).await.map_err(said)?;
    let connection = dial(&tcp, peer).await?;
    let way = route_over(connection.clone(), names)?;
    let opening = tcp.create_inlet("127.0.0.1:0", way, TcpInletOptions::new());
    stay(opening.await.map_err(said)?.socket_address().port()).await
}

/// Says which port can be connected to, and goes on until whoever started this ends.
async fn stay(port: u16) -> Outcome<()> {
    say(&format!("ready {port}"));
    // Whoever started this node holds its standard input; when they end, it ends.
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        std::process::exit(0);
    });
    std::future::pending().await
}

/// Lets messages of this flow reach the workers; without it they are dropped, and nobody is told.
fn expose(ctx: &Context, workers: &[&str], flow: &FlowControlId) {
    for worker in workers {
        ctx.flow_controls().add_consumer(*worker, flow);
    }
}

async fn start_ways(ctx: &Context, to: &TcpConnection, out: &str, back: &str) -> Result<()> {
    let way_out = WayOut {
        connection: to.sender_address().clone(),
        back: back.into(),
    };
    ctx.start_worker(out, way_out).await?;
    ctx.start_worker(back, WayBack { out: out.into() }).await
}

async fn dial(tcp: &TcpTransport, peer: &str) -> Outcome<TcpConnection> {
    let dialled = tcp.connect(peer, TcpConnectionOptions::new()).await;
    dialled.map_err(|error| format!("cannot connect to {peer}: {}", said(error)))
}

fn route_over(link: impl Into<Address>, names: &str) -> Outcome<Route> {
    let names = Route::parse(names).ok_or(format!("`{names}` is no route"))?;
    let mut route = route![link.into()];
    route.modify().append_route(names);
    Ok(route)
}

// --- Asking --------------------------------------------------------------------------------------

/// The link to whom is to be asked; answers over it are let in.
async fn linked(ctx: &Context, to: &Target) -> Outcome<Address> {
    let (link, flow) = match to.over.as_deref() {
        None => {
            let tcp = TcpTransport::create(ctx).await.map_err(said)?;
            let connection = dial(&tcp, &to.peer).await?;
            let flow = connection.flow_control_id().clone();
            (connection.into(), Some(flow))
        }
        Some("ws") => {
            let transport = WebSocketTransport::create(ctx).await.map_err(said)?;
            transport.connect(&to.peer).await.map_err(said)?;
            (Address::new_with_string(WS, to.peer.as_str()), None)
        }
        Some("udp") => {
            let transport = UdpTransport::create(ctx).await.map_err(said)?;
            let there = UdpBindArguments::new().with_peer_address(&to.peer).await;
            let bound = transport
                .bind(there.map_err(said)?, UdpBindOptions::new())
                .await
                .map_err(said)?;
            let flow = bound.flow_control_id().clone();
            (bound.into(), Some(flow))
        }
        Some(other) => return Err(format!("there is no transport {other}")),
    };
    if let Some(flow) = flow {
        // The answers come to the context's own address.
        ctx.flow_controls().add_consumer(ctx.address(), &flow);
    }
    Ok(link)
}

/// Someone to talk to: the node's own context, with a route.
struct Talk {
    ctx: Context,
    route: Route,
    patience: Duration,
}

impl Talk {
    async fn dial(ctx: Context, to: &Target) -> Outcome<Self> {
        let link = linked(&ctx, to).await?;
        let route = match &to.secure {
            None => route_over(link, &to.route)?,
            Some(listener) => secured(&ctx, route_over(link, listener)?, &to.route).await?,
        };
        Ok(Self {
            ctx,
            route,
            patience: to.patience,
        })
    }

    async fn send(&self, payload: Vec<u8>) -> Outcome<()> {
        let message = NeutralMessage::from(payload);
        self.ctx
            .send(self.route.clone(), message)
            .await
            .map_err(said)
    }

    async fn receive(&mut self) -> Outcome<Routed<NeutralMessage>> {
        let wait = MessageReceiveOptions::new().with_timeout(self.patience);
        self.ctx.receive_extended(wait).await.map_err(said)
    }

    async fn ask(&mut self, payload: Vec<u8>) -> Outcome<Routed<NeutralMessage>> {
        self.send(payload).await?;
        self.receive().await
    }

    /// What a sink has counted since it was last asked.
    async fn report(&mut self) -> Outcome<u64> {
        let reply = self.ask(REPORT.to_vec()).await?.into_payload();
        let text = String::from_utf8_lossy(&reply);
        text.parse().map_err(|_| format!("`{text}` is no count"))
    }

    /// Asks until the sink has had `count` messages; what it says is added up, as it forgets it.
    async fn until_arrived(&mut self, count: u64) -> Outcome<()> {
        let mut arrived = 0;
        for _ in 0..REPORTS {
            arrived += self.report().await?;
            if arrived >= count {
                break;
            }
            time::sleep(PAUSE).await;
        }
        if arrived != count {
            return Err(format!("{count} messages were sent, {arrived} arrived"));
        }
        Ok(())
    }

    /// Messages a second, from the first sent to the last counted.
    async fn one_way_rate(&mut self, size: usize, count: u64) -> Outcome<f64> {
        self.report().await?; // what was counted before is forgotten, and the way is warm
        let payload = contents(size, 0);
        let start = Instant::now();
        for _ in 0..count {
            self.send(payload.clone()).await?;
        }
        self.until_arrived(count).await?;
        Ok(count as f64 / start.elapsed().as_secs_f64())
    }

    /// How long each question took, in microseconds, shortest first.
    async fn round_trips(&mut self, size: usize, count: u64) -> Outcome<Vec<f64>> {
        let payload = contents(size, 0);
        self.ask(payload.clone()).await?; // not counted: the first pays for the connection
        let mut times = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let question = payload.clone();
            let start = Instant::now();
            let reply = self.ask(question).await?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            if reply.payload() != payload {
                return Err("a reply is not what was sent".into());
            }
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    }
}

/// Bytes that anybody can write again: 251 is prime, so that shifted or cut blocks are noticed.
fn contents(size: usize, turn: u64) -> Vec<u8> {
    (0..size as u64)
        .map(|at| ((at + turn) % 251) as u8)
        .collect()
}

async fn ask(ctx: Context, to: Target) -> Outcome<()> {
    let mut talk = Talk::dial(ctx, &to).await?;
    let mut back = route![];
    for turn in 0..to.count {
        let payload = contents(to.size, turn);
        let reply = talk.ask(payload.clone()).await?;
        if reply.payload() != payload {
            return Err(format!("reply {turn} is not what was sent"));
        }
        back = reply.return_route();
    }
    say(&format!("ok {} {back}", to.count));
    Ok(())
}

async fn bench_oneway(ctx: Context, to: Target) -> Outcome<()> {
    let mut talk = Talk::dial(ctx, &to).await?;
    say(&format!(
        "{:.1}",
        talk.one_way_rate(to.size, to.count).await?
    ));
    Ok(())
}

async fn bench_roundtrip(ctx: Context, to: Target) -> Outcome<()> {
    let mut talk = Talk::dial(ctx, &to).await?;
    let times = talk.round_trips(to.size, to.count).await?;
    say(&format!(
        "{:.1} {:.1}",
        share(&times, 50),
        share(&times, 99)
    ));
    Ok(())
}

/// The value that so many percent do not exceed.
fn share(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted[rank.max(1) - 1]
}

/// Channels a second: each is opened, with both sides proven, and closed.
async fn bench_handshakes(ctx: Context, to: Target) -> Outcome<()> {
    let link = linked(&ctx, &to).await?;
    let (channels, own) = identified().await.map_err(said)?;
    let route = route_over(link, &to.route)?;
    let mut start = Instant::now();
    for turn in 0..=to.count {
        if turn == 1 {
            start = Instant::now(); // the first pays for the connection and is not counted
        }
        let channel = opened(&ctx, &channels, &own, route.clone()).await?;
        channels
            .stop_secure_channel(&ctx, channel.encryptor_address())
            .await
            .map_err(said)?;
    }
    say(&format!(
        "{:.1}",
        to.count as f64 / start.elapsed().as_secs_f64()
    ));
    Ok(())
}

async fn bench_local(ctx: Context, to: Target) -> Outcome<()> {
    start_workers(&ctx).await.map_err(said)?;
    let mut talk = Talk {
        ctx,
        route: route!["sink"],
        patience: to.patience,
    };
    let one_way = talk.one_way_rate(to.size, to.count).await?;
    talk.route = route!["raw_echo"];
    let times = talk.round_trips(to.size, to.count).await?;
    let round_trips = to.count as f64 * 1e6 / times.iter().sum::<f64>();
    say(&format!("{one_way:.1} {round_trips:.1}"));
    Ok(())
}

// --- The command line ----------------------------------------------------------------------------

/// Whom to ask, along which route, and what.
struct Target {
    peer: String,
    route: String,
    size: usize,
    count: u64,
    patience: Duration,
    secure: Option<String>,
    over: Option<String>,
}

struct Options {
    threads: Option<usize>,
    patience: u64,
    port: u16,
    connect: Option<String>,
    name: String,
    outlet: Option<String>,
    secure: Option<String>,
    over: Option<String>,
}

fn number<T: std::str::FromStr>(text: &str) -> Outcome<T> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a number that fits"))
}

/// The options, and the words that are none.
fn parsed(mut arguments: impl Iterator<Item = String>) -> Outcome<(Options, Vec<String>)> {
    let mut options = Options {
        threads: None,
        patience: PATIENCE,
        port: 0,
        connect: None,
        name: "out".into(),
        outlet: None,
        secure: None,
        over: None,
    };
    let mut words = vec![];
    while let Some(word) = arguments.next() {
        if !word.starts_with("--") {
            words.push(word);
            continue;
        }
        let value = arguments.next().ok_or(format!("{word} needs a value"))?;
        match word.as_str() {
            "--threads" => options.threads = Some(number(&value)?),
            "--patience" => options.patience = number(&value)?,
            "--port" => options.port = number(&value)?,
            "--connect" => options.connect = Some(value),
            "--name" => options.name = value,
            "--outlet" => options.outlet = Some(value),
            "--secure" => options.secure = Some(value),
            "--over" => options.over = Some(value),
            _ => return Err(format!("there is no option {word}")),
        }
    }
    Ok((options, words))
}

async fn act(ctx: Context, options: Options, words: Vec<String>) -> Outcome<()> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (peer, route, size, count) = match words[..] {
        ["serve"] => return serve(ctx, options).await,
        ["inlet", peer, route] => return inlet(ctx, peer, route).await,
        ["bench-local", count, size] => ("", "", size, count),
        ["bench-handshakes", peer, route, count] => (peer, route, "0", count),
        ["ask" | "bench-oneway" | "bench-roundtrip", peer, route, size, count] => {
            (peer, route, size, count)
        }
        _ => return Err("what it can be asked stands at the beginning of main.rs".into()),
    };
    let to = Target {
        peer: peer.into(),
        route: route.into(),
        size: number(size)?,
        count: number::<NonZeroU64>(count)?.get(),
        patience: Duration::from_secs(options.patience),
        secure: options.secure,
        over: options.over,
    };
    match words[0] {
        "ask" => ask(ctx, to).await,
        "bench-oneway" => bench_oneway(ctx, to).await,
        "bench-roundtrip" => bench_roundtrip(ctx, to).await,
        "bench-handshakes" => bench_handshakes(ctx, to).await,
        _ => bench_local(ctx, to).await,
    }
}

/// None for as many threads as Ockam itself takes.
fn chosen_runtime(threads: Option<usize>) -> Option<runtime::Runtime> {
    let mut builder = match threads? {
        0 | 1 => runtime::Builder::new_current_thread(),
        _ => runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads?.max(1));
    Some(builder.enable_all().build().expect("tokio starts"))
}

/// What Ockam adds in brackets is where in its own code the error arose.
fn said(error: ockam_core::Error) -> String {
    let text = error.to_string();
    text.split(" (origin").next().unwrap_or_default().to_owned()
}

fn say(line: &str) {
    println!("{line}");
    let _ = std::io::stdout().flush();
}

fn fail(reason: &str) -> ! {
    eprintln!("ockam-peer: {reason}");
    std::process::exit(1)
}

fn main() {
    let (options, words) = parsed(std::env::args().skip(1)).unwrap_or_else(|why| fail(&why));
    // Ockam logs to standard output, which is ours.
    let mut builder = NodeBuilder::new().no_logging();
    if let Some(runtime) = chosen_runtime(options.threads) {
        builder = builder.with_runtime(Arc::new(runtime));
    }
    let (ctx, mut executor) = builder.build();
    let ran = executor.execute(async move {
        // The process ends here: to stop the node in good order takes a second, and proves nothing.
        match act(ctx, options, words).await {
            Ok(()) => std::process::exit(0),
            Err(why) => fail(&why),
        }
        #[allow(unreachable_code)]
        Ok::<(), String>(())
    });
    if let Err(error) = ran {
        fail(&said(error));
    }
}
