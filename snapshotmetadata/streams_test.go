package snapshotmetadata

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/longshore-csi/longshore/snapshotmetadata/api"
)

func testSecret(namespace, name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{"password": []byte("xyzzy")}}
}

// dial returns a connection that trusts the certificate of now.
func (r *running) dial() *grpc.ClientConn {
	r.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.certs.CA())
	conn, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: roots})))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	return conn
}

// hold has the driver's streams hang until they are cancelled. The channel gets nil when one begins, and then the error of its context.
func (r *running) hold() <-chan error {
	events := make(chan error, 100)
	r.driver.onAllocated(func(_ *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
		events <- nil
		<-stream.Context().Done()
		events <- stream.Context().Err()
		return stream.Context().Err()
	})
	return events
}

func request() *api.GetMetadataAllocatedRequest {
	return &api.GetMetadataAllocatedRequest{SecurityToken: goodToken, Namespace: "shop", SnapshotName: "monday"}
}

// TestStop ends running streams so that their clients continue elsewhere, and those of the driver with them.
func TestStop(t *testing.T) {
	r := start(t)
	hold := r.hold()
	ended := make(chan error, 1)
	go func() { ended <- r.call(context.WithoutCancel(t.Context()), request()) }()
	<-hold
	r.Stop()
	if err := <-ended; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "continue the stream with starting_offset") {
		t.Errorf("the stream ended in %v", err)
	}
	if err := <-hold; err == nil {
		t.Error("the driver's stream goes on")
	}
}

// TestDrain lets a stream end that runs at the stop, and accepts no other.
func TestDrain(t *testing.T) {
	r := start(t)
	release := make(chan struct{})
	r.driver.onAllocated(func(req *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
		release <- struct{}{}
		<-release
		return allocated(1)(req, stream)
	})
	ended := make(chan error, 1)
	go func() { ended <- r.call(context.WithoutCancel(t.Context()), request()) }()
	<-release
	stopped := make(chan struct{})
	go func() { r.Stop(); close(stopped) }()
	r.Eventually("accept no more connections", func() bool {
		conn, err := net.Dial("tcp", r.address)
		if err == nil {
			conn.Close()
		}
		return err != nil
	})
	close(release)
	if err := <-ended; err != nil {
		t.Errorf("the stream that was running ended in %v", err)
	}
	<-stopped
}

// TestHealth says by gRPC's health service whether the driver can be called.
func TestHealth(t *testing.T) {
	r := start(t)
	client := healthv1.NewHealthClient(r.dial())
	serves := func(want healthv1.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for _, service := range []string{"", api.SnapshotMetadata_ServiceDesc.ServiceName} {
			r.Eventually(service+" is "+want.String(), func() bool {
				reply, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
				return err == nil && reply.GetStatus() == want
			})
		}
	}
	serves(healthv1.HealthCheckResponse_SERVING)
	r.csi.SetReady(false)
	serves(healthv1.HealthCheckResponse_NOT_SERVING)
	r.csi.SetReady(true)
	serves(healthv1.HealthCheckResponse_SERVING)
	r.Stop()
}

// TestLimits refuses streams beyond the limits, until others have ended.
func TestLimits(t *testing.T) {
	r := start(t, "--max-streams=2", "--max-streams-per-user=1")
	hold := r.hold()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.call(ctx, request()) }()
	<-hold
	if err := r.call(t.Context(), request()); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), `user "system:serviceaccount:backup:agent" has 1, as --max-streams-per-user allows`) {
		t.Errorf("a second stream of the user: %v", err)
	}
	cancel()
	<-ended
	<-hold
	r.driver.onAllocated(allocated(1))
	r.Eventually("serve the next stream", func() bool { return r.call(t.Context(), request()) == nil })
	r.Stop()
}

// TestFlowControl has a driver that could send without end, and a client that reads nothing: the driver is held back.
func TestFlowControl(t *testing.T) {
	r := start(t)
	blocked := make(chan int64)
	sent := make(chan int64, 1)
	r.driver.onAllocated(func(_ *csi.GetMetadataAllocatedRequest, stream csi.SnapshotMetadata_GetMetadataAllocatedServer) error {
		list := make([]*csi.BlockMetadata, 4096)
		var n int64
		defer func() { sent <- n }()
		for n < 1e6 {
			for i := range list {
				list[i] = block(n*int64(len(list)) + int64(i))
			}
			if err := stream.Send(&csi.GetMetadataAllocatedResponse{VolumeCapacityBytes: 1 << 60, BlockMetadata: list}); err != nil {
				return err
			}
			n++
			select {
			case blocked <- n:
			default:
			}
		}
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := api.NewSnapshotMetadataClient(r.dial()).GetMetadataAllocated(ctx, request())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	// It is held back when nothing has been sent for a while: the windows of two connections are full.
	const most = 1000
	for more := true; more; {
		select {
		case n := <-blocked:
			more = n <= most
		case <-time.After(2 * time.Second):
			more = false
		}
	}
	cancel()
	select {
	case n := <-sent:
		if t.Logf("the driver sent %d messages of 4096 blocks", n); n > most {
			t.Error("nothing holds it back")
		}
	case <-time.After(patience):
		t.Error("the driver's stream goes on although the client has gone")
	}
	r.Stop()
}

// TestRenewedCertificate is used by the next connection.
func TestRenewedCertificate(t *testing.T) {
	r := start(t)
	before := r.dial()
	if _, err := healthv1.NewHealthClient(before).Check(t.Context(), &healthv1.HealthCheckRequest{Service: "snapshotmetadata.SnapshotMetadata"}); err != nil {
		t.Fatal(err)
	}
	r.certs.Renew()
	if _, err := healthv1.NewHealthClient(r.dial()).Check(t.Context(), &healthv1.HealthCheckRequest{}); err != nil {
		t.Errorf("with the renewed certificate: %v", err)
	}
	if err := r.call(t.Context(), request()); err != nil {
		t.Errorf("a call: %v", err)
	}
	r.Stop()
}

// TestOldTLS refuses versions of TLS that are broken, as the caller's token would be seen by others.
func TestOldTLS(t *testing.T) {
	r := start(t)
	dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11, NextProtos: []string{"h2"}}}
	conn, err := dialer.DialContext(t.Context(), "tcp", r.address)
	if err == nil {
		conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "remote error: tls: protocol version not supported") {
		t.Errorf("TLS 1.1: got %v, want that the server does not support the version", err)
	}
	r.Stop()
}
