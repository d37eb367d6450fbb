package outcome_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-csi/longshore/csikit/outcome"
)

// nilStatusError claims to carry a status and has none.
type nilStatusError struct{}

func (nilStatusError) Error() string              { return "nil status" }
func (nilStatusError) GRPCStatus() *status.Status { return nil }

// okStatusError is an error that says OK, which status.Error never makes.
type okStatusError struct{}

func (okStatusError) Error() string              { return "ok status" }
func (okStatusError) GRPCStatus() *status.Status { return status.New(codes.OK, "fine") }

// wrappings are the ways in which an error reaches its judge.
func wrappings() map[string]func(error) error {
	return map[string]func(error) error{
		"Plain":   func(err error) error { return err },
		"Wrapped": func(err error) error { return fmt.Errorf("create volume %q: %w", "a", err) },
		"Twice":   func(err error) error { return fmt.Errorf("sync: %w", fmt.Errorf("create: %w", err)) },
		"Joined":  func(err error) error { return errors.Join(errors.New("other"), err) },
	}
}

func TestOfEveryCode(t *testing.T) {
	cases := map[codes.Code]struct {
		reason string
		want   outcome.Class
	}{
		codes.OK:                 {"no error", outcome.Done},
		codes.Canceled:           {"the driver was not heard to the end", outcome.Uncertain},
		codes.Unknown:            {"the driver failed without saying how", outcome.Final},
		codes.InvalidArgument:    {"the request is wrong", outcome.Infeasible},
		codes.DeadlineExceeded:   {"the driver was not heard to the end", outcome.Uncertain},
		codes.NotFound:           {"the driver's answer", outcome.Final},
		codes.AlreadyExists:      {"the driver's answer", outcome.Final},
		codes.PermissionDenied:   {"the driver's answer", outcome.Final},
		codes.ResourceExhausted:  {"no capacity there", outcome.Exhausted},
		codes.FailedPrecondition: {"the driver's answer", outcome.Final},
		codes.Aborted:            {"the driver is at work on that volume", outcome.Uncertain},
		codes.OutOfRange:         {"no such size", outcome.Infeasible},
		codes.Unimplemented:      {"the driver's answer", outcome.Final},
		codes.Internal:           {"the driver's answer", outcome.Final},
		codes.Unavailable:        {"the driver may have died at work", outcome.Uncertain},
		codes.DataLoss:           {"the driver's answer", outcome.Final},
		codes.Unauthenticated:    {"the driver's answer", outcome.Final},
	}
	if len(cases) != 17 {
		t.Fatalf("%d codes are tested, gRPC has 17", len(cases))
	}
	for code, c := range cases {
		for name, wrap := range wrappings() {
			t.Run(code.String()+name, func(t *testing.T) {
				err := status.Error(code, "text")
				if err != nil {
					err = wrap(err)
				}
				if got := outcome.Of(err); got != c.want {
					t.Errorf("%s: Of(%v) = %v, want %v", c.reason, err, got, c.want)
				}
				if got := outcome.Code(err); got != code {
					t.Errorf("Code(%v) = %v, want %v", err, got, code)
				}
				want := "text"
				if code == codes.OK {
					want = ""
				}
				if got := outcome.Message(err); got != want {
					t.Errorf("Message(%v) = %q, want %q", err, got, want)
				}
			})
		}
	}
}

func TestOfOtherErrors(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		want   outcome.Class
		code   codes.Code
	}{
		"Canceled":       {reason: "a call given up may still run", err: context.Canceled, want: outcome.Uncertain, code: codes.Canceled},
		"Deadline":       {reason: "a call given up may still run", err: context.DeadlineExceeded, want: outcome.Uncertain, code: codes.DeadlineExceeded},
		"NotGRPC":        {reason: "it says nothing about the driver", err: errors.New("boom"), want: outcome.Uncertain, code: codes.Unknown},
		"NilStatus":      {reason: "it says nothing about the driver", err: nilStatusError{}, want: outcome.Uncertain, code: codes.Unknown},
		"ContradictsOK":  {reason: "an error that says OK proves nothing", err: okStatusError{}, want: outcome.Uncertain, code: codes.OK},
		"NewerCode":      {reason: "a code of a later gRPC is still the driver's answer", err: status.Error(codes.Code(99), "new"), want: outcome.Final, code: codes.Code(99)},
		"CauseOfContext": {reason: "the cause of a context hides it", err: fmt.Errorf("lost: %w", errors.New("lease")), want: outcome.Uncertain, code: codes.Unknown},
	}
	for name, c := range cases {
		for wrapping, wrap := range wrappings() {
			t.Run(name+wrapping, func(t *testing.T) {
				err := wrap(c.err)
				if got := outcome.Of(err); got != c.want {
					t.Errorf("%s: Of = %v, want %v", c.reason, got, c.want)
				}
				if got := outcome.Code(err); got != c.code {
					t.Errorf("%s: Code = %v, want %v", c.reason, got, c.code)
				}
			})
		}
	}
}

func TestClass(t *testing.T) {
	cases := map[outcome.Class]struct {
		name     string
		mayStill bool
	}{
		outcome.Done:       {"done", false},
		outcome.Final:      {"final", false},
		outcome.Infeasible: {"infeasible", false},
		outcome.Uncertain:  {"uncertain", true},
		outcome.Exhausted:  {"exhausted", false},
		outcome.Class(42):  {"invalid", true},
	}
	for class, c := range cases {
		if got := class.String(); got != c.name {
			t.Errorf("Class(%d).String() = %q, want %q", int(class), got, c.name)
		}
		if got := class.MayStillRun(); got != c.mayStill {
			t.Errorf("%v.MayStillRun() = %v, want %v", class, got, c.mayStill)
		}
	}
}

func TestMessage(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    error
		want   string
	}{
		"Nil":        {reason: "no error, no text"},
		"Driver":     {reason: "without decoration", err: status.Error(codes.Internal, "disk is on fire"), want: "disk is on fire"},
		"Wrapped":    {reason: "without what callers added", err: fmt.Errorf("attach: %w", status.Error(codes.Internal, "disk is on fire")), want: "disk is on fire"},
		"NotGRPC":    {reason: "its own text", err: errors.New("no route"), want: "no route"},
		"Lines":      {reason: "one line", err: status.Error(codes.Internal, "exit 1:\n\tmkfs:\r\n  busy\n"), want: "exit 1: mkfs: busy"},
		"Joined":     {reason: "errors.Join writes one error per line", err: errors.New("no space left\nwrite the record: closed"), want: "no space left; write the record: closed"},
		"NotUTF8":    {reason: "the API server refuses invalid UTF-8", err: errors.New("bad \xff byte"), want: "bad \uFFFD byte"},
		"Empty":      {reason: "a driver may say nothing", err: status.Error(codes.Internal, "")},
		"NilStatus":  {reason: "its own text", err: nilStatusError{}, want: "nil status"},
		"Decoration": {reason: "a driver that passes on a decorated error keeps it", err: status.Error(codes.Internal, "rpc error: code = Aborted desc = busy"), want: "rpc error: code = Aborted desc = busy"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := outcome.Message(c.err); got != c.want {
				t.Errorf("%s: got %q, want %q", c.reason, got, c.want)
			}
		})
	}
}

func TestText(t *testing.T) {
	cases := map[string]struct {
		reason     string
		err        error
		fromDriver bool
		want       string
	}{
		"Driver":    {reason: "code and message, without what callers added", err: fmt.Errorf("attach: %w", status.Error(codes.Internal, "on fire")), fromDriver: true, want: "Internal: on fire"},
		"Local":     {reason: "what was attempted", err: fmt.Errorf("get secret: %w", context.DeadlineExceeded), want: "get secret: context deadline exceeded"},
		"NilStatus": {reason: "no status", err: nilStatusError{}, want: "nil status"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := outcome.Text(c.err); got != c.want || outcome.FromDriver(c.err) != c.fromDriver {
				t.Errorf("%s: got %q, from the driver %t, want %q, %t", c.reason, got, outcome.FromDriver(c.err), c.want, c.fromDriver)
			}
		})
	}
}

func FuzzMessage(f *testing.F) {
	f.Add("disk\non\tfire")
	f.Add("\xff\xfe")
	f.Fuzz(func(t *testing.T, text string) {
		got := outcome.Message(status.Error(codes.Internal, text))
		if !utf8.ValidString(got) {
			t.Errorf("Message of %q is not valid UTF-8: %q", text, got)
		}
		for _, r := range got {
			if r == '\n' || r == '\r' || r == '\t' {
				t.Errorf("Message of %q has more than one line: %q", text, got)
			}
		}
	})
}
