{{- define "tidemark.operator" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}-operator
{{- end }}

{{- define "tidemark.account" -}}
{{ .Values.serviceAccount.name | default (include "tidemark.operator" .) }}
{{- end }}

{{- define "tidemark.image" -}}
{{- with .image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.root.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{- define "tidemark.selector" -}}
app.kubernetes.io/name: tidemark-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tidemark.labels" -}}
{{ include "tidemark.selector" . }}
app.kubernetes.io/part-of: tidemark
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tidemark.controllers" -}}
{{- $name := include "tidemark.operator" . -}}
{{- $addresses := list -}}
{{- range until (int .Values.operator.replicas) -}}
{{- $addresses = printf "%s-%d.%s.%s.svc:%d" $name . $name $.Release.Namespace (int $.Values.control.port) | append $addresses -}}
{{- end -}}
{{ join "," $addresses }}
{{- end }}

{{- define "tidemark.brokers" -}}
app.kubernetes.io/name: tidemark-broker
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tidemark.brokerLabels" -}}
{{ include "tidemark.brokers" . }}
app.kubernetes.io/part-of: tidemark
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "tidemark.portName" -}}
{{ printf "l-%s" (lower .) }}
{{- end }}

{{- /* The configuration of one broker: (root, name, broker). */}}
{{- define "tidemark.brokerConfig" -}}
{{- $pods := .root.Values.brokerPods -}}
{{- $host := printf "%s.%s.svc" .name .root.Release.Namespace -}}
{{- $listeners := list -}}
{{- $advertised := list -}}
{{- $protocols := list -}}
{{- $config := dict -}}
{{- range $name, $listener := $pods.listeners -}}
{{- $listeners = printf "%s://0.0.0.0:%d" $name (int $listener.port) | append $listeners -}}
{{- $advertised = printf "%s://%s:%d" $name $host (int $listener.port) | append $advertised -}}
{{- $protocols = printf "%s:%s" $name $listener.protocol | append $protocols -}}
{{- if $listener.tlsSecret -}}
{{- $_ := set $config (printf "listener.name.%s.tidemark.tls.directory" (lower $name)) (printf "/etc/tidemark/listeners/%s" (lower $name)) -}}
{{- end -}}
{{- end -}}
{{- $listeners = printf "REPLICATION://0.0.0.0:%d" (int $pods.replicationPort) | append $listeners -}}
{{- $advertised = printf "REPLICATION://%s:%d" $host (int $pods.replicationPort) | append $advertised -}}
{{- $own := dict
  "node.id" (printf "%d" (int64 .broker.nodeId))
  "log.dir" "/var/lib/tidemark/log"
  "listeners" (join "," $listeners)
  "advertised.listeners" (join "," $advertised)
  "listener.security.protocol.map" (join "," $protocols)
  "controller.addresses" (include "tidemark.controllers" .root)
  "tidemark.tls.directory" "/etc/tidemark/certificate"
  "metrics.host" "0.0.0.0"
  "metrics.port" (printf "%d" (int $pods.metricsPort)) -}}
{{- with .broker.rack -}}{{- $_ := set $config "broker.rack" . -}}{{- end -}}
{{- range $key, $value := merge $own $pods.config $config }}
{{ $key }}={{ $value }}
{{- end }}
{{- end }}
