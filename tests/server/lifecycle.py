"""How the daemon starts and ends: loading, failing to load, SIGTERM, a second signal, SIGKILL.
usage: lifecycle.py EXECUTABLE"""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from daemon import Daemon, check, done, generate_bytes, left_out, read_responses, wait_until

executable = sys.argv[1]
LONG = generate_bytes({"prompt": "a", "seed": 6, "num_inference_steps": 50})


def loading_is_a_503():
    with Daemon(executable, "fake,load_ms=1500", ready=False) as d:
        r = d.get("/health")
        check(r.status == 200 and r.json()["state"] == "loading",
              f"/health answers 200 while the model loads: {r.body}")
        r = d.get("/health/ready")
        check(r.status == 503 and r.headers["retry-after"],
              f"/health/ready is a 503 while the model loads: {r.status}")
        check(d.get("/info").json()["model"] is None, "GET /info has no model while it loads")
        r = d.generate({"prompt": "a"})
        check(r.status == 503 and r.headers["retry-after"],
              f"POST /generate is a 503 while the model loads: {r.status}")
        check(r.error()["code"] == "unavailable", f"{r.body}")
        check(wait_until(lambda: d.get("/health/ready").status == 200), "the daemon becomes ready")
        check(d.generate({"prompt": "a"}).status == 200, "the daemon draws once it is ready")


def a_stop_while_loading_is_a_clean_end():
    with Daemon(executable, "fake,load_ms=700", ready=False):
        pass  # leaving sends SIGTERM and expects status 0


def a_bad_checkpoint_ends_the_daemon_with_its_name():
    p = subprocess.run([executable, "serve", "--model", "/no/such", "--listen", "127.0.0.1:0"],
                       capture_output=True, text=True, timeout=30)
    check(p.returncode == 1 and "/no/such: there is no such checkpoint" in p.stderr,
          f"{p.returncode}: {p.stderr}")
    check(p.stdout == "", f"a daemon without a checkpoint does not listen: {p.stdout}")
    p = subprocess.run([executable, "serve", "--model", "fake,fail_load", "--listen", "127.0.0.1:0"],
                       capture_output=True, text=True, timeout=30)
    check(p.returncode == 1 and "cut short" in p.stderr, f"{p.returncode}: {p.stderr}")


def sigterm_finishes_what_is_accepted():
    with Daemon(executable, "fake,step_ms=20") as d:
        clients = [d.connect() for _ in range(3)]
        for s in clients:
            s.sendall(LONG)
        check(d.gets_to_depth(3), "three requests are accepted")
        idle = d.connect()
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_responses(idle)
        d.process.send_signal(signal.SIGTERM)

        def refused():
            try:
                d.connect().close()
                return False
            except ConnectionResetError:
                return False  # the socket was closed during this handshake: try again
            except ConnectionRefusedError:
                return True
        check(wait_until(refused), "new connections are refused")
        idle.sendall(generate_bytes({"prompt": "late"}))
        responses, _ = read_responses(idle)
        check([r.status for r in responses] == [503], "a request on an open connection is a 503")
        for s in clients:
            responses, _ = read_responses(s, 30)
            check([r.status for r in responses] == [200] and
                  responses[0].json()["images"][0]["seed"] == 6, "the accepted request is finished")
        check(d.process.wait(20) == 0, "SIGTERM ends the daemon with status 0")
        check("stopped" in d.read_log(), "the log says that the daemon stopped")


def sighup_finishes_what_is_accepted():
    with Daemon(executable, "fake,step_ms=20") as d, d.connect() as s:
        s.sendall(LONG)
        check(d.gets_to_depth(1), "the request is accepted")
        d.process.send_signal(signal.SIGHUP)
        responses, _ = read_responses(s, 30)
        check([r.status for r in responses] == [200], "the accepted request is finished")
        check(d.process.wait(20) == 0, "SIGHUP ends the daemon with status 0")
    command = [executable, "serve", "--model", "fake", "--listen", "127.0.0.1:0"]
    p = subprocess.Popen(["nohup", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    check("listening" in p.stdout.readline(), "the daemon starts under nohup")
    p.send_signal(signal.SIGHUP)
    check(wait_until(lambda: p.poll() is not None, 0.5) is False, "nohup's SIGHUP is ignored")
    p.send_signal(signal.SIGTERM)
    check(p.wait(20) == 0, "SIGTERM ends the daemon with status 0")


def a_drain_timeout_cancels_what_is_not_done(step_ms):
    with Daemon(executable, f"fake,step_ms={step_ms}", extra=["--drain-timeout", "1"]) as d:
        waiting = [d.connect() for _ in range(3)]
        for s in waiting:
            s.sendall(generate_bytes({"prompt": "a", "num_inference_steps": 500}))
        check(d.gets_to_depth(3), "three requests are accepted")
        d.process.send_signal(signal.SIGTERM)
        for s in waiting:
            responses, _ = read_responses(s, 15)
            check([r.status for r in responses] == [503],
                  f"requests over the drain timeout get a 503: {[r.status for r in responses]}")
        check(d.process.wait(15) == 0, "SIGTERM ends the daemon with status 0")
        check("not done after 1 s" in d.read_log(), "the log says that requests were not finished")


def limits_are_what_was_asked_for():
    with Daemon(executable, "fake,step_ms=50", extra=["--max-queue", "2"]) as d:
        check(d.get("/info").json()["queue"]["max"] == 2, "--max-queue sets the queue's size")
        clients = []
        for n in range(3):  # one is drawn, two wait
            clients.append(d.connect())
            clients[-1].sendall(generate_bytes({"prompt": "a", "num_inference_steps": 100}))
            check(d.gets_to_depth(n + 1), f"{n + 1} requests are accepted")
            check(d.is_drawing(), "the first request is being drawn")
        check(d.generate({"prompt": "a"}).status == 429, "a fourth request is a 429")
        for s in clients:
            s.close()
    for option, value, words in (
            ("max-queue", "0", "--max-queue: 0 is not allowed; an integer from 1 to 65536"),
            ("max-connections", "5000", "--max-connections: 5000 is not allowed"),
            ("drain-timeout", "1.5", "--drain-timeout: 1.5 is not allowed"),
            ("log-level", "loud", "debug, info, warning or error"),
            ("socket-mode", "888", "an octal number"), ("socket-mode", "1777", "an octal number")):
        p = subprocess.run([executable, "serve", "--model", "fake", f"--{option}", value],
                           capture_output=True, text=True, timeout=30)
        check(p.returncode == 2 and words in p.stderr, f"--{option} {value}: {p.stderr}")


def every_refusal_is_logged_within_bounds():
    with Daemon(executable) as d:
        check(d.get("/nope", {"X-Request-Id": "r1"}).status == 404, "404")
        check(d.get("/health", {"Host": "evil.example", "X-Request-Id": "r2"}).status == 403, "403")
        check(d.generate({"prompt": "a", "width": 3}, {"X-Request-Id": "r3"}).status == 400, "400")
        with d.connect() as s:
            s.sendall(b"GET /health HTTP/1.1\r\nfoo\r\n\r\n")
            read_responses(s)
        log = d.read_log()
        for words in ("r1: 404 to GET /nope: there is no such path here", "r2: 403 to GET /health: ",
                      "r3: 400 to POST /generate: width: 3 is not allowed", "refused by the HTTP library"):
            check(words in log, f"the log says {words}")
        for _ in range(300):
            d.get("/nope")
        lines = [line for line in d.read_log().split("\n") if "/nope" in line]
        print(f"{len(lines)} of 301 refusals were logged one by one")
        check(2 <= len(lines) <= 150, f"{len(lines)} lines of 301 refusals")
    with Daemon(executable, extra=["--log-level", "warning"]) as d:
        check(d.get("/nope").status == 404 and " info " not in d.read_log(), "--log-level warning")
    with Daemon(executable, extra=["--log-level", "debug"]) as d:
        check(d.get("/nope").status == 404, "--log-level debug")


def a_unix_socket_works():
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/socket"
        with Daemon(executable, listen="unix:" + path) as d:
            check(d.generate({"prompt": "a"}).status == 200,
                  "a picture is drawn over a unix socket")
            check(os.stat(path).st_mode & 0o777 == 0o600, f"mode {os.stat(path).st_mode:o}")
            p = subprocess.run([executable, "serve", "--model", "fake", "--listen", "unix:" + path],
                               capture_output=True, text=True, timeout=30)
            check(p.returncode == 1 and "already in use" in p.stderr,
                  f"a second daemon on the socket refuses to start: {p.stderr}")
            check(d.get("/health").status == 200, "the first daemon still serves")
        check(not os.path.exists(path), "the socket's file is removed at the end")
        with Daemon(executable, listen="unix:" + path, extra=["--socket-mode", "660"]) as d:
            check(os.stat(path).st_mode & 0o777 == 0o660, f"mode {os.stat(path).st_mode:o}")
            d.process.kill()
            d.process.wait()
        check(os.path.exists(path), "a killed daemon leaves its socket's file")
        with Daemon(executable, listen="unix:" + path) as d:
            check(d.get("/health").status == 200, "a new daemon replaces the left socket")
            os.unlink(path)
            socket.socket(socket.AF_UNIX).bind(path)  # another program's socket
        check(os.path.exists(path), "another program's socket is not removed at the end")
        with open(folder + "/file", "w") as f:
            f.write("precious")
        for listen, words in (("unix:" + folder + "/file", "not a socket"), ("unix:", "unix: and a path"),
                              ("unix:" + "x" * 108, "unix: and a path"),
                              ("unix:" + folder + "/no/such", "No such file")):
            p = subprocess.run([executable, "serve", "--model", "fake", "--listen", listen],
                               capture_output=True, text=True, timeout=30)
            check(p.returncode in (1, 2) and words in p.stderr, f"{listen}: {p.stderr}")
        with open(folder + "/file") as f:
            check(f.read() == "precious", "a regular file in the socket's place is not touched")


def a_slow_device_does_not_hold_up_info():
    """GET /info does not wait for the device, because the engine's thread and not an HTTP thread
    asks the device for its figures."""
    with Daemon(executable, "fake,figures_ms=1500") as d:
        def figures():
            return d.get("/info").json()["device"]
        check(wait_until(lambda: figures() is not None),
              "GET /info shows the device's figures once the device has answered")
        wait_until(lambda: figures()["age_s"] > 1)
        begun = time.monotonic()
        for _ in range(20):
            check(figures()["memory_free_bytes"] == 400,
                  "GET /info shows the device's last answer while the device is slow")
        took = time.monotonic() - begun
        print(f"20 GET /info took {took:.2f} s while the device takes 1.5 s to answer")
        check(took < 15, f"20 GET /info do not wait for the device: {took:.2f} s")
        check(wait_until(lambda: figures()["age_s"] < 1), "the device is asked again")


def a_second_signal_is_the_end():
    with Daemon(executable, "fake,step_ms=100") as d, d.connect() as s:
        s.sendall(generate_bytes({"prompt": "a", "num_inference_steps": 900}))
        check(d.is_drawing(), "the request is being drawn")
        d.process.send_signal(signal.SIGTERM)
        check(wait_until(lambda: "finishing" in d.read_log()),
              "the daemon is finishing its requests")
        d.process.send_signal(signal.SIGINT)
        status = d.process.wait(30)  # its request would take 90 s
        check(status == 128 + signal.SIGINT,
              f"SIGINT after SIGTERM ends the daemon at once with status 130, not {status}")


def sigkill_and_restart_leave_nothing_broken():
    with tempfile.TemporaryDirectory() as folder, Daemon(executable, "fake,step_ms=20") as d:
        port = d.port
        old = d.connect()
        old.sendall(LONG)
        check(d.is_drawing(), "the request is being drawn")
        d.process.kill()
        d.process.wait()
        check(os.listdir(folder) == [], "a killed daemon leaves no files")
        with Daemon(executable, "fake", listen=f"127.0.0.1:{port}") as again:
            check(again.generate({"prompt": "a"}).status == 200,
                  "a new daemon can use the port of the killed one")
        old.close()


def the_port_is_taken():
    with Daemon(executable) as d:
        p = subprocess.run([executable, "serve", "--model", "fake", "--listen", f"127.0.0.1:{d.port}"],
                           capture_output=True, text=True, timeout=30)
        check(p.returncode == 1 and "Address already in use" in p.stderr, f"{p.stderr}")


def ipv6_works():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        left_out("listening on IPv6: this machine has no IPv6 loopback")
        return
    with Daemon(executable, listen="[::1]:0") as d:
        check(d.get("/health").status == 200, "the daemon answers over IPv6")


def stopping_under_load_loses_nobody():
    """Every client gets a whole answer or a refused connection, whenever the signal comes."""
    for delay in (0.05, 0.15, 0.3):
        with Daemon(executable, "fake,step_ms=1") as d:
            outcomes = []

            def client():
                try:
                    while True:
                        r = d.generate({"prompt": "a", "num_inference_steps": 5})
                        outcomes.append(r.status)
                        if r.status != 200:
                            return
                except ConnectionError:
                    outcomes.append("refused")
            threads = [threading.Thread(target=client) for _ in range(8)]
            for t in threads:
                t.start()
            wait_until(lambda: False, delay)
            d.process.send_signal(signal.SIGTERM)
            for t in threads:
                t.join(30)
            check(set(outcomes) <= {200, 503, "refused"} and not any(t.is_alive() for t in threads),
                  f"{set(outcomes)}")
            check(d.process.wait(30) == 0, "SIGTERM ends the daemon with status 0")


def a_lost_device_ends_the_daemon_with_status_70():
    with Daemon(executable, "fake,step_ms=20") as d:
        waiting = [d.connect() for _ in range(2)]
        waiting[0].sendall(generate_bytes({"prompt": "fail:lost", "num_inference_steps": 20}))
        check(d.is_drawing(), "the request is being drawn")
        waiting[1].sendall(LONG)
        for s in waiting:
            responses, _ = read_responses(s, 30)
            check([r.status for r in responses] == [500] and
                  responses[0].error()["code"] == "device_lost", f"{responses[0].body}")
        check(d.process.wait(20) == 70, "a lost device ends the daemon with status 70")
        check("the GPU is lost" in d.read_log(), "the log says that the GPU is lost")


loading_is_a_503()
a_stop_while_loading_is_a_clean_end()
a_bad_checkpoint_ends_the_daemon_with_its_name()
sigterm_finishes_what_is_accepted()
sighup_finishes_what_is_accepted()
a_drain_timeout_cancels_what_is_not_done(20)
a_drain_timeout_cancels_what_is_not_done(3000)  # a step that takes longer than the timeout
limits_are_what_was_asked_for()
every_refusal_is_logged_within_bounds()
a_unix_socket_works()
a_slow_device_does_not_hold_up_info()
a_second_signal_is_the_end()
sigkill_and_restart_leave_nothing_broken()
the_port_is_taken()
ipv6_works()
stopping_under_load_loses_nobody()
a_lost_device_ends_the_daemon_with_status_70()
done()
