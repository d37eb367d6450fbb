package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// forward calls use with an address that leads to a port of a pod, as `kubectl port-forward` does: what a component serves to its own
// host only is reached in no other way.
func forward(b *testbed.Bed, pod *corev1.Pod, port int, use func(address string) error) error {
	transport, upgrader, err := spdy.RoundTripperFor(b.Config)
	if err != nil {
		return fmt.Errorf("forward port %d of %s: %w", port, pod.Name, err)
	}
	url := b.Client.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("portforward").URL()
	dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
	stop, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return fmt.Errorf("forward port %d of %s: %w", port, pod.Name, err)
	}
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case err := <-ended:
		return fmt.Errorf("forward port %d of %s: %w", port, pod.Name, err)
	case <-ready:
	}
	defer func() {
		close(stop)
		<-ended
	}()
	ports, err := forwarder.GetPorts()
	if err != nil {
		return fmt.Errorf("forward port %d of %s: %w", port, pod.Name, err)
	}
	return use(fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
}

// get returns the body of an answer with status 200.
func get(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	reply, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	body, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("get %s: %s: %s", url, reply.Status, body)
	}
	return body, err
}
