"""The daemon's beginning and its ends: loading, failing to load, SIGTERM, a second signal, SIGKILL.
usage: lifecycle.py EXECUTABLE"""
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading

from daemon import Daemon, check, done, generate_bytes, read_responses, wait_until

executable = sys.argv[1]
LONG = generate_bytes({"prompt": "a", "seed": 6, "num_inference_steps": 50})


def loading_is_a_503():
    with Daemon(executable, "fake,load_ms=1500", ready=False) as d:
        r = d.get("/health")
        check(r.status == 200 and r.json()["state"] == "loading", f"alive while loading: {r.body}")
        r = d.get("/health/ready")
        check(r.status == 503 and r.headers["retry-after"], f"not ready: {r.status}")
        check(d.get("/info").json()["model"] is None, "no model yet")
        r = d.generate({"prompt": "a"})
        check(r.status == 503 and r.headers["retry-after"], f"generate: {r.status}")
        check(r.error()["code"] == "unavailable", f"{r.body}")
        check(wait_until(lambda: d.get("/health/ready").status == 200), "then it is ready")
        check(d.generate({"prompt": "a"}).status == 200, "and draws")


def a_stop_while_loading_is_a_clean_end():
    with Daemon(executable, "fake,load_ms=700", ready=False):
        pass  # SIGTERM and status 0 on leaving


def a_bad_checkpoint_ends_the_daemon_with_its_name():
    p = subprocess.run([executable, "serve", "--model", "/no/such", "--listen", "127.0.0.1:0"],
                       capture_output=True, text=True, timeout=30)
    check(p.returncode == 1 and "/no/such: there is no such checkpoint" in p.stderr,
          f"{p.returncode}: {p.stderr}")


def sigterm_finishes_what_is_accepted():
    with Daemon(executable, "fake,step_ms=20") as d:
        clients = [d.connect() for _ in range(3)]
        for s in clients:
            s.sendall(LONG)
        check(wait_until(lambda: d.get("/info").json()["queue"]["depth"] == 3), "three accepted")
        idle = d.connect()
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_responses(idle)
        d.process.send_signal(signal.SIGTERM)

        def refused():
            try:
                d.connect().close()
                return False
            except ConnectionRefusedError:
                return True
        check(wait_until(refused), "new connections are refused")
        idle.sendall(generate_bytes({"prompt": "late"}))
        responses, _ = read_responses(idle)
        check([r.status for r in responses] == [503], "a request on an old connection is a 503")
        for s in clients:
            responses, _ = read_responses(s, 30)
            check([r.status for r in responses] == [200] and
                  responses[0].json()["images"][0]["seed"] == 6, "an accepted request is finished")
        check(d.process.wait(20) == 0, "status 0")
        check("stopped" in d.read_log(), "and it says so")


def a_second_signal_is_the_end():
    with Daemon(executable, "fake,step_ms=100") as d, d.connect() as s:
        s.sendall(generate_bytes({"prompt": "a", "num_inference_steps": 900}))
        check(wait_until(lambda: d.get("/info").json()["queue"]["depth"] == 1), "being drawn")
        d.process.send_signal(signal.SIGTERM)
        check(wait_until(lambda: "finishing" in d.read_log()), "draining")
        d.process.send_signal(signal.SIGINT)
        status = d.process.wait(5)
        check(status == 128 + signal.SIGINT, f"ends at once with 130, not {status}")


def sigkill_and_restart_leave_nothing_broken():
    with tempfile.TemporaryDirectory() as folder, Daemon(executable, "fake,step_ms=20") as d:
        port = d.port
        old = d.connect()
        old.sendall(LONG)
        check(wait_until(lambda: d.get("/info").json()["queue"]["depth"] == 1), "being drawn")
        d.process.kill()
        d.process.wait()
        check(os.listdir(folder) == [], "no files left")
        with Daemon(executable, "fake", listen=f"127.0.0.1:{port}") as again:
            check(again.generate({"prompt": "a"}).status == 200, "the same port serves again")
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
        print("no IPv6 loopback here")
        return
    with Daemon(executable, listen="[::1]:0") as d:
        check(d.get("/health").status == 200, "over IPv6")


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
            check(d.process.wait(30) == 0, "status 0")


def a_lost_device_ends_the_daemon_with_status_70():
    with Daemon(executable, "fake,step_ms=20") as d:
        waiting = [d.connect() for _ in range(2)]
        waiting[0].sendall(generate_bytes({"prompt": "fail:lost", "num_inference_steps": 20}))
        check(wait_until(lambda: d.get("/info").json()["queue"]["depth"] == 1), "being drawn")
        waiting[1].sendall(LONG)
        for s in waiting:
            responses, _ = read_responses(s, 30)
            check([r.status for r in responses] == [500] and
                  responses[0].error()["code"] == "device_lost", f"{responses[0].body}")
        check(d.process.wait(20) == 70, "status 70")
        check("the GPU is lost" in d.read_log(), "and it says why")


loading_is_a_503()
a_stop_while_loading_is_a_clean_end()
a_bad_checkpoint_ends_the_daemon_with_its_name()
sigterm_finishes_what_is_accepted()
a_second_signal_is_the_end()
sigkill_and_restart_leave_nothing_broken()
the_port_is_taken()
ipv6_works()
stopping_under_load_loses_nobody()
a_lost_device_ends_the_daemon_with_status_70()
done()
