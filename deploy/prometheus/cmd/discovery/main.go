// Command discovery serves the pods and nodes of a cluster as targets for Prometheus (http_sd_configs). The labels are those of
// kubernetes_sd_configs, which Debian's Prometheus does not have. It runs in a pod, next to Prometheus.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return errors.New("usage: discovery ADDRESS:PORT")
	}
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return err
	}
	roots.AppendCertsFromPEM(ca)
	api := &apiServer{
		url:    "https://" + net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")),
		token:  func() ([]byte, error) { return os.ReadFile(account + "token") }, // the kubelet renews it
		client: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}},
	}
	server := &http.Server{Addr: os.Args[1], Handler: handler(api), ReadHeaderTimeout: 10 * time.Second}
	return server.ListenAndServe()
}

// group is what http_sd_configs reads.
type group struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

func handler(api *apiServer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /pods", func(w http.ResponseWriter, r *http.Request) {
		var list corev1.PodList
		err := api.get(r.Context(), "/api/v1/pods", &list)
		answer(w, podTargets(list.Items), err)
	})
	mux.HandleFunc("GET /nodes", func(w http.ResponseWriter, r *http.Request) {
		var list corev1.NodeList
		err := api.get(r.Context(), "/api/v1/nodes", &list)
		answer(w, nodeTargets(list.Items), err)
	})
	return mux
}

func answer(w http.ResponseWriter, groups []group, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(groups) // Prometheus asks again
}

// podTargets are the declared ports of all containers.
func podTargets(pods []corev1.Pod) []group {
	groups := []group{}
	for _, pod := range pods {
		if pod.Status.PodIP == "" {
			continue
		}
		for _, c := range pod.Spec.Containers {
			for _, port := range c.Ports {
				labels := map[string]string{
					"__meta_kubernetes_namespace":          pod.Namespace,
					"__meta_kubernetes_pod_name":           pod.Name,
					"__meta_kubernetes_pod_container_name": c.Name,
					"__meta_kubernetes_pod_node_name":      pod.Spec.NodeName,
					"__meta_kubernetes_pod_phase":          string(pod.Status.Phase),
				}
				addAll(labels, "__meta_kubernetes_pod_annotation_", pod.Annotations)
				addAll(labels, "__meta_kubernetes_pod_label_", pod.Labels)
				groups = append(groups, group{[]string{net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port.ContainerPort)))}, labels})
			}
		}
	}
	return groups
}

// nodeTargets are the kubelets.
func nodeTargets(nodes []corev1.Node) []group {
	groups := []group{}
	for _, node := range nodes {
		for _, address := range node.Status.Addresses {
			if address.Type == corev1.NodeInternalIP {
				port := strconv.Itoa(int(node.Status.DaemonEndpoints.KubeletEndpoint.Port))
				groups = append(groups, group{[]string{net.JoinHostPort(address.Address, port)}, map[string]string{"__meta_kubernetes_node_name": node.Name}})
				break
			}
		}
	}
	return groups
}

func addAll(labels map[string]string, prefix string, more map[string]string) {
	for name, value := range more {
		labels[prefix+regexp.MustCompile(`[^a-zA-Z0-9_]`).ReplaceAllString(name, "_")] = value
	}
}

type apiServer struct {
	url    string
	token  func() ([]byte, error)
	client *http.Client
}

func (a *apiServer) get(ctx context.Context, path string, into any) error {
	token, err := a.token()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("list %s: %s", path, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
