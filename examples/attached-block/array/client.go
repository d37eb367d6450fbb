package array

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Client calls the API of an array. It is safe for concurrent use.
type Client struct {
	// Address is http://host:port.
	Address string
	// User and Password are an account of the array.
	User, Password string
	// HTTP makes the requests; the zero value is ready.
	HTTP http.Client
}

// Pools returns all pools.
func (c *Client) Pools(ctx context.Context) ([]Pool, error) {
	return call[[]Pool](ctx, c, "pools", Request{})
}

// List returns the LUNs of a kind with a name, at most one; all for the empty name.
func (c *Client) List(ctx context.Context, kind Kind, name string) ([]LUN, error) {
	return call[[]LUN](ctx, c, "list", Request{LUN: LUN{Ref: Ref{Kind: kind}, Name: name}})
}

// Get returns a LUN.
func (c *Client) Get(ctx context.Context, r Ref) (LUN, error) {
	return call[LUN](ctx, c, "get", Request{LUN: LUN{Ref: r}})
}

// Create makes a LUN, or returns the one of that kind and name. A copy is in the pool of its source, and at least as large.
func (c *Client) Create(ctx context.Context, l LUN) (LUN, error) {
	return call[LUN](ctx, c, "create", Request{LUN: l})
}

// Delete deletes a LUN that is not exported.
func (c *Client) Delete(ctx context.Context, r Ref) error {
	_, err := call[any](ctx, c, "delete", Request{LUN: LUN{Ref: r}})
	return err
}

// Resize makes a LUN larger.
func (c *Client) Resize(ctx context.Context, r Ref, size int64) error {
	_, err := call[any](ctx, c, "resize", Request{LUN: LUN{Ref: r, Size: size}})
	return err
}

// Export shows a LUN to a host, and returns the path by which it finds it. The path takes the place of what names a LUN on its way to a node: portal and
// target of iSCSI, world wide names of Fibre Channel.
func (c *Client) Export(ctx context.Context, r Ref, host string, readOnly bool) (path string, err error) {
	return call[string](ctx, c, "export", Request{LUN: LUN{Ref: r}, Host: host, ReadOnly: readOnly})
}

// Unexport cuts a host off a LUN; all hosts for the empty name.
func (c *Client) Unexport(ctx context.Context, r Ref, host string) error {
	_, err := call[any](ctx, c, "unexport", Request{LUN: LUN{Ref: r}, Host: host})
	return err
}

// call sends a request, and returns its answer or an *Error.
func call[T any](ctx context.Context, c *Client, name string, in Request) (out T, err error) {
	body, err := json.Marshal(in)
	if err != nil {
		return out, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Address+"/"+name, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	req.SetBasicAuth(c.User, c.Password)
	resp, err := c.HTTP.Do(req)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return out, err
	}
	if resp.StatusCode != http.StatusOK {
		said := &Error{Status: resp.StatusCode}
		if json.Unmarshal(answer, said) != nil { // it is not the array that answers, but a proxy
			said.Text = strings.TrimSpace(string(answer))
		}
		said.Text = "array: " + said.Text
		return out, said
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return out, fmt.Errorf("read the array's answer to %q: %w", name, err)
	}
	return out, nil
}
