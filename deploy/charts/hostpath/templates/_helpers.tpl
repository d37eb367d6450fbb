{{/* What the names of all objects begin with: the release's, short enough for the labels that Kubernetes makes of workload names. */}}
{{- define "hostpath.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Labels of every object. The last two are helm's. */}}
{{- define "hostpath.labels" -}}
app.kubernetes.io/part-of: {{ include "hostpath.name" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Image and pull policy of a container: include "hostpath.image" (list . NAME). */}}
{{- define "hostpath.image" -}}
{{- $all := (index . 0).Values.images -}}
{{- $name := index . 1 -}}
{{- $own := get $all $name -}}
{{- $path := compact (list ($own.registry | default $all.registry) ($own.prefix | default $all.prefix) $name) | join "/" -}}
image: {{ printf "%s:%s" $path $own.tag | quote }}
{{- with $all.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}

{{/* Annotations of the pods. No prometheus.io/port: every port that a container declares is scraped. */}}
{{- define "hostpath.podAnnotations" -}}
kubectl.kubernetes.io/default-container: hostpath
{{- include "hostpath.scrapeAnnotations" . }}
{{- end -}}

{{- define "hostpath.scrapeAnnotations" -}}
{{- if .Values.monitoring.annotations }}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
{{- end }}
{{- end -}}

{{/* Not empty if the release has a snapshot-controller. */}}
{{- define "hostpath.snapshotController" -}}
{{- if and .Values.snapshots .Values.snapshotController.install }}yes{{ end -}}
{{- end -}}

{{/* What differs between the pods of the sides: include "hostpath.pod" (list . SIDE), where SIDE is controller, node or snapshotController. */}}
{{- define "hostpath.pod" -}}
{{- $root := index . 0 -}}
{{- $side := index . 1 -}}
{{- $values := get $root.Values $side -}}
serviceAccountName: {{ include "hostpath.name" $root }}-{{ kebabcase $side }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{/* Directory of the driver's socket on the nodes. */}}
{{- define "hostpath.pluginDir" -}}
{{ .Values.kubeletDir }}/plugins/{{ .Values.driver.name }}
{{- end -}}

{{/* Not empty if the release installs or upgrades a definition: the cluster has none, or has that of this release, and not a newer one. */}}
{{- define "hostpath.ownsCRD" -}}
{{- $root := index . 0 -}}
{{- $new := index . 1 -}}
{{- if $root.Values.snapshotCRDs.install -}}
{{- $there := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $new.metadata.name -}}
{{- $notes := dig "metadata" "annotations" dict $there | default dict -}}
{{- $owner := printf "%s/%s" (get $notes "meta.helm.sh/release-namespace") (get $notes "meta.helm.sh/release-name") -}}
{{- $key := "csi.longshore.dev/crd-revision" -}}
{{- if not $there -}}
new
{{- else if and (eq $owner (printf "%s/%s" $root.Release.Namespace $root.Release.Name)) (le (int (get $notes $key)) (int (get $new.metadata.annotations $key))) -}}
upgraded
{{- end -}}
{{- end -}}
{{- end -}}
