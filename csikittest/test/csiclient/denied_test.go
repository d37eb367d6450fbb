package csiclient_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"k8s.io/klog/v2"

	"github.com/longshore-csi/longshore/csikit/csiclient"
	"github.com/longshore-csi/longshore/csikit/logging"
	"github.com/longshore-csi/longshore/csikittest/csitest"
)

// A driver whose socket belongs to another user was waited for forever, as if it were absent.
func TestDeniedSocketIsExplained(t *testing.T) {
	address, ok := csitest.New(csitest.Options{}).ServeDenied(t)
	if !ok {
		return
	}
	client := connect(t, csiclient.Config{Address: address})
	want := []string{
		"permission denied: socket " + strings.TrimPrefix(address, "unix://") + " has mode",
		fmt.Sprintf("this process has uid %d, gid %d", os.Geteuid(), os.Getegid()),
		"needs write permission: ", "0660",
	}
	check := func(where, text string) {
		t.Helper()
		for _, part := range want {
			if !strings.Contains(text, part) {
				t.Errorf("%s lacks %q:\n%s", where, part, text)
			}
		}
	}
	if err := client.Ready(t.Context()); err == nil {
		t.Error("the driver is ready")
	} else {
		check("the error of Ready", err.Error())
	}
	for name, wait := range map[string]func(context.Context) error{
		"Wait": func(ctx context.Context) error { _, err := client.Wait(ctx); return err },
		"Run":  func(ctx context.Context) error { return client.Run(ctx, nil, nil) },
	} {
		line := make(firstLine, 1)
		logger, err := logging.New(logging.NewOptions(), line)
		if err != nil {
			t.Fatalf("logging.New: %v", err)
		}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		ended := make(chan error, 1)
		go func() { ended <- wait(ctx) }()
		check("the log of "+name, receive(t, "the first line of the log of "+name, line))
		cancel()
		<-ended
	}
}

// firstLine receives the first line that is written to it.
type firstLine chan string

func (l firstLine) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default:
	}
	return len(line), nil
}
