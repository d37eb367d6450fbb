// Package bootstrap writes what the components of a development cluster find in the API server: their rights, the CSIDriver
// object of the driver, and the definitions of the kinds of snapshots. It waits until these are served, and until the nodes have
// registered the driver.
package bootstrap

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/longshore-csi/longshore/devcluster/apply"
)

//go:embed objects/*.yaml
var objects embed.FS

// Driver is what the objects say of the driver.
type Driver struct {
	Name string
	// Capacity says that the driver reports its capacity. Otherwise the scheduler must not wait for it.
	Capacity bool
	// File has the CSIDriver object. Empty: the object fits the reference driver.
	File string
}

// object returns the CSIDriver object.
func (d Driver) object() (*unstructured.Unstructured, error) {
	if d.File == "" {
		list, err := d.embedded("csidriver.yaml")
		if err != nil {
			return nil, err
		}
		return list[0], nil
	}
	o, err := ReadCSIDriver(d.File)
	if err == nil && o.GetName() != d.Name {
		err = fmt.Errorf("%s: the CSIDriver object is named %q, but the driver answers that its name is %q", d.File, o.GetName(), d.Name)
	}
	return o, err
}

// ReadCSIDriver reads a file that has one CSIDriver object and nothing else.
func ReadCSIDriver(file string) (*unstructured.Unstructured, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	list, err := apply.Decode(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(list) != 1 || list[0].GetKind() != "CSIDriver" || list[0].GetAPIVersion() != "storage.k8s.io/v1" {
		return nil, fmt.Errorf("%s: must have one object of storage.k8s.io/v1 CSIDriver and nothing else", file)
	}
	return list[0], nil
}

// embedded returns the objects of a file of this package, with the values of the driver.
func (d Driver) embedded(name string) ([]*unstructured.Unstructured, error) {
	data, err := objects.ReadFile("objects/" + name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	list, err := apply.Decode([]byte(d.fill(string(data))))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return list, nil
}

// fill replaces the placeholders of the driver in the objects.
func (d Driver) fill(text string) string {
	return strings.NewReplacer("DRIVER_NAME", d.Name, "STORAGE_CAPACITY", strconv.FormatBool(d.Capacity)).Replace(text)
}

const period = 100 * time.Millisecond

// Cluster is an API server that has been prepared.
type Cluster struct {
	client kubernetes.Interface
}

// Apply writes the objects for the driver, and waits until the API server serves the kinds of snapshots.
func Apply(ctx context.Context, config *rest.Config, driver Driver) (*Cluster, error) {
	writer, err := apply.New(apply.Config{REST: config, Manager: "devcluster"})
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	rights, err1 := driver.embedded("rbac.yaml")
	object, err2 := driver.object()
	definitions, err3 := driver.embedded("snapshotcrds.yaml")
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	if err := writer.Apply(ctx, slices.Concat(rights, []*unstructured.Unstructured{object}, definitions)...); err != nil {
		return nil, err
	}
	for _, definition := range definitions {
		if err := waitEstablished(ctx, writer, definition); err != nil {
			return nil, err
		}
	}
	return &Cluster{client: client}, nil
}

// waitEstablished waits until the API server serves the kind of a CustomResourceDefinition.
func waitEstablished(ctx context.Context, writer *apply.Client, definition *unstructured.Unstructured) error {
	resource, err := writer.Resource(definition)
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextCancel(ctx, period, true, func(ctx context.Context) (bool, error) {
		var got *unstructured.Unstructured
		got, last = resource.Get(ctx, definition.GetName(), metav1.GetOptions{})
		return last == nil && established(got), nil
	})
	if err != nil {
		return fmt.Errorf("wait until the API server serves %s: %w", definition.GetName(), errors.Join(last, err))
	}
	return nil
}

func established(definition *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions") // there are none yet, or they are well-formed
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, ok := c.(map[string]any)
		return ok && condition["type"] == "Established" && condition["status"] == "True"
	})
}

// WaitNodes waits until every node is Ready and has the driver. The error of a context that ends first says what is missing.
func (c *Cluster) WaitNodes(ctx context.Context, names []string, driver string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(period)
	defer tick.Stop()
	for {
		missing, err := c.missing(ctx, names, driver)
		if err == nil && missing == "" {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the nodes: %s: %w", missing, ctx.Err())
		}
	}
}

// missing says what the first node that is not complete lacks.
func (c *Cluster) missing(ctx context.Context, names []string, driver string) (string, error) {
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "the nodes cannot be listed: " + err.Error(), err
	}
	csiNodes, err := c.client.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return "the CSINodes cannot be listed: " + err.Error(), err
	}
	return Missing(names, driver, nodes.Items, csiNodes.Items), nil
}

// Missing says what the first incomplete node lacks, or "".
func Missing(names []string, driver string, nodes []corev1.Node, csiNodes []storagev1.CSINode) string {
	ready, registered := map[string]bool{}, map[string]bool{}
	for _, n := range nodes {
		for _, cond := range n.Status.Conditions {
			if cond.Type == corev1.NodeReady && cond.Status == corev1.ConditionTrue {
				ready[n.Name] = true
			}
		}
	}
	for _, n := range csiNodes {
		for _, d := range n.Spec.Drivers {
			if d.Name == driver {
				registered[n.Name] = true
			}
		}
	}
	for _, name := range names {
		switch {
		case !ready[name]:
			return fmt.Sprintf("node %s is not Ready (log of csi-node-agent.%s)", name, name)
		case !registered[name]:
			return fmt.Sprintf("driver %s is not registered on node %s (log of csi-node-driver-registrar.%s)", driver, name, name)
		}
	}
	return ""
}
