package devcluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/longshore-csi/longshore/devcluster/internal/layout"
)

// ErrDown says that no cluster is up in the directory.
var ErrDown = errors.New("no cluster is up")

const (
	// callTimeout bounds one call; the longest is a status that waits for a change.
	callTimeout = longPoll + 10*time.Second
	// dropTimeout bounds the time that a supervisor may drop connections before it is gone.
	dropTimeout = 10 * time.Second
)

// Client talks to the supervisor of a cluster.
type Client struct {
	dir  layout.Dir
	http *http.Client
}

// Connect makes a client for the cluster in a directory. It does not dial: calls answer ErrDown when nothing is up.
func Connect(dir string) *Client {
	d := layout.Dir(dir)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", d.Supervisor())
	}
	return &Client{dir: d, http: &http.Client{Timeout: callTimeout, Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Status asks for the status. A positive version waits for a status that is newer.
func (c *Client) Status(ctx context.Context, after int) (Status, error) {
	body, err := c.ask(ctx, "/status?after="+strconv.Itoa(after))
	if err != nil {
		return Status{}, err
	}
	var s Status
	if err := json.Unmarshal(body, &s); err != nil {
		return Status{}, fmt.Errorf("read the status of the cluster: %w", err)
	}
	return s, nil
}

// Signal sends a signal ("KILL", "TERM", ...) to a process. A process that ends is started again.
func (c *Client) Signal(ctx context.Context, process, signal string) error {
	_, err := c.do(ctx, http.MethodPost, "/processes/"+url.PathEscape(process)+"/signal/"+url.PathEscape(signal))
	return err
}

// Hold kills a process and keeps it down until Release.
func (c *Client) Hold(ctx context.Context, process string) error {
	_, err := c.do(ctx, http.MethodPost, "/processes/"+url.PathEscape(process)+"/hold")
	return err
}

// Release lets a held process run again.
func (c *Client) Release(ctx context.Context, process string) error {
	_, err := c.do(ctx, http.MethodPost, "/processes/"+url.PathEscape(process)+"/release")
	return err
}

// Log is the file that a process writes to.
func (c *Client) Log(process string) string { return c.dir.Log(process) }

func (c *Client) stop(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/stop")
	return err
}

// ask reads what a path has. A supervisor that was killed takes connections for as long as the kernel needs to close its socket,
// and drops them: ask repeats the request until the supervisor answers or no process listens.
func (c *Client) ask(ctx context.Context, path string) (body []byte, err error) {
	ask := func(context.Context) (done bool, _ error) {
		body, err = c.do(ctx, http.MethodGet, path)
		return !isDropped(err), nil
	}
	if done, _ := ask(ctx); !done {
		_ = wait.PollUntilContextTimeout(ctx, pollPeriod, dropTimeout, false, ask) // the last answer says more than an end of time
	}
	return body, err
}

func (c *Client) do(ctx context.Context, method, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://supervisor"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the supervisor: %w", err)
	}
	resp, err := c.http.Do(req)
	if isDown(err) {
		return nil, fmt.Errorf("%w in %s", ErrDown, c.dir)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the supervisor: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read the answer of the supervisor: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(strings.TrimSpace(string(body)))
	}
	return body, nil
}

// isDown reports whether no process listens at the socket. A path that is too long for a socket is invalid: no process can listen there.
func isDown(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EINVAL)
}

// isDropped reports whether the connection ended before there was an answer.
func isDropped(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
