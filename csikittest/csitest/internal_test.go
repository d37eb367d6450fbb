package csitest

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// What a client sends as metadata, a trace context say, is what the server
// receives, and the server does not send it on by accident.
func TestServerContext(t *testing.T) {
	plain := t.Context()
	if got := serverContext(plain); got != plain {
		t.Errorf("a context without metadata was changed")
	}
	got := serverContext(metadata.AppendToOutgoingContext(plain, "traceparent", "00-1"))
	in, _ := metadata.FromIncomingContext(got)
	if diff := cmp.Diff([]string{"00-1"}, in.Get("traceparent")); diff != "" {
		t.Errorf("received metadata (-want +got):\n%s", diff)
	}
	if out, _ := metadata.FromOutgoingContext(got); len(out) > 0 {
		t.Errorf("the server would send on %v", out)
	}
}

func TestInterceptRefusesForeignRequests(t *testing.T) {
	d := New(Options{})
	handle := func(context.Context, any) (any, error) { return &csi.ProbeResponse{}, nil }
	_, err := chain(nil, d.intercept)(t.Context(), "text", &grpc.UnaryServerInfo{FullMethod: csi.Identity_Probe_FullMethodName}, handle)
	if status.Code(err) != codes.Internal {
		t.Errorf("a request that is no message: got %v, want Internal", err)
	}
	if calls := d.Calls(); len(calls) != 0 {
		t.Errorf("it was logged as %v", calls)
	}
}

func TestPage(t *testing.T) {
	ids := []string{"a", "b", "c"}
	cases := map[string]struct {
		reason, token string
		size          int
		want          []string
		next          string
		code          codes.Code
	}{
		"All":          {reason: "no size means all", want: ids},
		"First":        {reason: "the token names the last one shown", size: 2, want: []string{"a", "b"}, next: "after:b"},
		"Last":         {reason: "the last page has no token", token: "after:b", size: 2, want: []string{"c"}},
		"Vanished":     {reason: "a token may name a deleted volume", token: "after:bb", size: 5, want: []string{"c"}},
		"Behind":       {reason: "nothing is left", token: "after:z", size: 5, want: []string{}},
		"Foreign":      {reason: "not a token of this driver", token: "1", code: codes.Aborted},
		"NegativeSize": {reason: "a size is not negative", size: -1, code: codes.InvalidArgument},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, next, err := page(ids, c.token, c.size)
			if status.Code(err) != c.code || next != c.next {
				t.Errorf("%s: next %q, error %v; want %q, %v", c.reason, next, err, c.next, c.code)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: page (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}
