"""Clients of server-sent events. They read line by line, as section 9.2 of the HTML standard
defines it."""
import http.client
import json
import time


class Event:
    def __init__(self, kind, data, number):
        self.kind, self.data, self.number = kind, data, number

    def json(self):
        return json.loads(self.data)


class EventReader:
    """Reads events from `self.response`."""

    def __init__(self):
        self.comments, self.ids, self.last_id, self.retry_ms = 0, 0, None, None

    def next(self):
        """Returns the next event; None once the stream has ended."""
        kind, data = "message", []
        while True:
            line = self.response.readline()
            if not line.endswith(b"\n"):
                return None  # an incomplete event does not count
            line = line.decode().rstrip("\r\n")
            if not line:
                if data:
                    return Event(kind, "\n".join(data), self.last_id)
                kind = "message"
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "":
                self.comments += 1
            elif name == "event":
                kind = value
            elif name == "data":
                data.append(value)
            elif name == "id":
                self.ids += 1
                self.last_id = int(value)
            elif name == "retry":
                self.retry_ms = int(value)

    def __iter__(self):
        while (event := self.next()) is not None:
            yield event

    def all(self):
        """Returns the remaining events of this stream."""
        return list(self)


class Stream(EventReader):
    """A POST whose answer is a stream of events. For any other answer, `status` and `body` are
    set."""

    def __init__(self, daemon, fields, path="/generate", headers=None, timeout=60):
        super().__init__()
        self.connection = http.client.HTTPConnection(daemon.host, daemon.port, timeout=timeout)
        self.connection.request("POST", path, json.dumps(fields),
                                {"Content-Type": "application/json", **(headers or {})})
        self.response = self.connection.getresponse()
        self.status = self.response.status
        self.headers = {k.lower(): v for k, v in self.response.getheaders()}
        self.streams = self.headers["content-type"] == "text/event-stream"
        self.body = None if self.streams else self.response.read()

    def until(self, kind):
        """Returns the next event of this kind and skips others; None if the stream ends before."""
        for event in self:
            if event.kind == kind:
                return event
        return None

    def close(self):
        self.connection.close()
        self.response.close()


class EventSource(EventReader):
    """Works like a browser's EventSource: remembers the last id, reconnects when a stream ends,
    and stops at a 204. `open` connects."""

    def __init__(self, daemon, path, last_id=None, timeout=20):
        super().__init__()
        self.daemon, self.path, self.last_id, self.timeout = daemon, path, last_id, timeout
        self.connection = self.response = None

    def open(self):
        self.close()
        headers = {"Accept": "text/event-stream"}
        if self.last_id is not None:
            headers["Last-Event-ID"] = str(self.last_id)
        self.connection = http.client.HTTPConnection(self.daemon.host, self.daemon.port,
                                                     timeout=self.timeout)
        self.connection.request("GET", self.path, headers=headers)
        self.response = self.connection.getresponse()
        return self.response.status

    def close(self):
        if self.connection:
            self.connection.close()
        self.connection = self.response = None

    def next(self):
        try:
            return super().next()
        except (http.client.HTTPException, ConnectionError):
            return None

    def follow(self, seconds=30):
        """Returns all events until the server says that there are no more, even if the daemon is
        restarted meanwhile."""
        events, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                if self.open() == 204:
                    return events
                events += self.all()
            except OSError:
                pass  # the daemon is starting
            time.sleep(0.02)
        return events
