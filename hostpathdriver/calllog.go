package hostpathdriver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/redact"
)

// levelCalls is the verbosity from which calls are written to Options.CallLog.
const levelCalls = 5

// loggedCall is a call as csi-driver-host-path writes it.
type loggedCall struct {
	Method            string
	Request, Response json.RawMessage
	// Error is empty for a call that succeeded.
	Error     string
	FullError *loggedError
}

type loggedError struct {
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
}

// callLog returns an interceptor that writes calls to out, see Options.CallLog.
func callLog(out io.Writer) grpc.UnaryServerInterceptor {
	var mu sync.Mutex
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		reply, err := handle(ctx, req)
		if !klog.FromContext(ctx).V(levelCalls).Enabled() {
			return reply, err
		}
		call := loggedCall{Method: info.FullMethod, Request: json.RawMessage(redact.Message(req).String()), Response: json.RawMessage("null")}
		if err != nil {
			call.Error, call.FullError = err.Error(), &loggedError{status.Code(err), status.Convert(err).Message()}
		} else {
			call.Response = json.RawMessage(redact.Message(reply).String())
		}
		if line, err := json.Marshal(call); err == nil {
			mu.Lock()
			defer mu.Unlock()
			fmt.Fprintf(out, "gRPCCall: %s\n", line)
		}
		return reply, err
	}
}
